#include "heap.h"

#include <algorithm>
#include <cstring>

#include "alignment.h"

namespace pkb::emulator {
namespace {

constexpr uint64_t kUnit = 16;    // of sizes, and of the alignment that malloc gives
constexpr uint64_t kLeastHeap = 4 << 20;  // an H100 raises smaller limits to this
constexpr uint64_t kHeader = 16;  // before each allocation, as GPUs have one; nobody may touch it

}  // namespace

bool DeviceHeap::set_limit(uint64_t bytes) {
  if (bytes_.data()) return false;
  limit_ = align_up(std::max(bytes, kLeastHeap), kUnit);
  return true;
}

void DeviceHeap::open() {
  if (bytes_.data()) return;
  bytes_ = Mapping(limit_, true);
  next_ = reinterpret_cast<uint64_t>(bytes_.data());
  free_[next_] = limit_;
}

bool DeviceHeap::holds(uint64_t address) const {
  const auto begin = reinterpret_cast<uint64_t>(bytes_.data());
  return begin && address >= begin && address < begin + bytes_.bytes();
}

uint64_t DeviceHeap::allocate(uint64_t bytes, uint64_t alignment) {
  if (bytes > limit_) return 0;
  const auto address_in = [&](uint64_t block) { return align_up(block + kHeader, std::max(alignment, kUnit)); };
  const auto fits = [&](const auto& block) { return address_in(block.first) + align_up(std::max<uint64_t>(bytes, 1), kUnit) <= block.first + block.second; };
  auto found = std::find_if(free_.lower_bound(next_), free_.end(), fits);
  if (found == free_.end()) found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return 0;
  const auto [block, free_bytes] = *found;
  const uint64_t address = address_in(block), end = address + align_up(std::max<uint64_t>(bytes, 1), kUnit);
  free_.erase(found);
  if (end < block + free_bytes) free_[end] = block + free_bytes - end;
  next_ = end;
  auto name = freed_.lower_bound(block);
  while (name != freed_.end() && name->first < end) {
    memory_.remove(name->second);
    name = freed_.erase(name);
  }
  std::memset(reinterpret_cast<void*>(address), kNewByte, bytes);
  const uint64_t region = memory_.add_on_gpu(RegionKind::kAllocation, rank_, "by malloc", bytes_, address, bytes, Space::kGlobal, false);
  memory_.set_written(address, bytes, false);
  allocations_[address] = {block, end - block, bytes, region};
  return address;
}

int64_t DeviceHeap::size_of(uint64_t address) const {
  const auto found = allocations_.find(address);
  return found == allocations_.end() ? -1 : int64_t(found->second.bytes);
}

void DeviceHeap::release(uint64_t address, const std::string& by) {
  const Allocation over = allocations_.at(address);
  allocations_.erase(address);
  memory_.remove(over.region);
  freed_[address] = memory_.add(RegionKind::kAllocation, rank_, "freed at " + by, address, over.bytes, Space::kGlobal, false, 0, false);
  auto [block, bytes] = std::pair{over.block, over.block_bytes};
  if (const auto after = free_.find(block + bytes); after != free_.end()) {
    bytes += after->second;
    free_.erase(after);
  }
  auto before = free_.lower_bound(block);
  if (before != free_.begin() && (--before)->first + before->second == block) {
    before->second += bytes;
  } else {
    free_[block] = bytes;
  }
}

}  // namespace pkb::emulator
