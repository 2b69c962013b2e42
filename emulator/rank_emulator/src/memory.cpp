#include "memory.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace pkb::emulator {
namespace {

// The system maps memory near the upper end of the half that processes have: no mapping lies below the greatest distance.
uint64_t draw_distance() {
  uint64_t drawn = 0;
  if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) throw std::runtime_error("no random number for addresses of GPUs");
  return (1 + drawn % ((1 << 15) - 1)) << 30;
}

}  // namespace

const uint64_t kOwnDistance = draw_distance();

Mapping::Mapping(uint64_t bytes, bool on_gpu) : bytes_(bytes) {
  const uint64_t bits_at = (bytes + 63) / 64 * 64;
  mapped_ = on_gpu ? bits_at + bits_at / 8 : bytes;
  void* const found = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(found);
  if (on_gpu) written_ = reinterpret_cast<uint8_t*>(data_ + bits_at);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, mapped_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), mapped_(other.mapped_), written_(std::exchange(other.written_, nullptr)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(written_, other.written_);
  return *this;
}

uint64_t Memory::add(RegionKind kind, int rank, const std::string& name, uint64_t address, uint64_t bytes, Space space,
                     bool checked, uint32_t element_bytes, bool initialised, uint64_t launch, uint32_t block) {
  const uint64_t id = next_++;
  const Region region{id, kind, rank, names_.insert(name).first->c_str(), address, bytes, element_bytes, initialised, launch, block};
  regions_[id] = region;
  if (checked && bytes > 0) extents_[address] = Extent{address, address + bytes, space, rank, id};
  last_ = nullptr;
  if (observer_) observer_->region_added(region);
  return id;
}

uint64_t Memory::add_on_gpu(RegionKind kind, int rank, const std::string& name, const Mapping& mapping, uint64_t address, uint64_t bytes, Space space, bool initialised) {
  const uint64_t id = add(kind, rank, name, address, bytes, space, true, 0, initialised);
  if (bytes == 0) return id;
  Extent& extent = extents_.at(address);
  extent.on_gpu = true;
  extent.written = mapping.written() + (address - reinterpret_cast<uint64_t>(mapping.data())) / 8;
  return id;
}

void Memory::add_alias(uint64_t region, int rank, uint64_t address, uint64_t bytes, uint8_t* written) {
  extents_[address] = Extent{address, address + bytes, Space::kGlobal, rank, region, true, written};
  last_ = nullptr;
}

void Memory::note_freed(uint64_t address, uint64_t bytes, int rank) {
  constexpr size_t kMost = 256;
  freed_.push_back({address, bytes, rank});
  if (freed_.size() > kMost) freed_.pop_front();
}

void Memory::remove_alias(uint64_t address) {
  const auto found = extents_.find(address);
  if (found == extents_.end()) return;
  note_freed(address, found->second.end - found->second.begin, found->second.rank);
  extents_.erase(found);
  last_ = nullptr;
  ++removals_;
}

void Memory::add_multicast(uint64_t begin, uint64_t bytes, std::vector<uint64_t> members) {
  multicasts_[begin] = {begin, begin + bytes, std::move(members)};
}

void Memory::remove_multicasts(uint64_t begin, uint64_t end) { multicasts_.erase(multicasts_.lower_bound(begin), multicasts_.lower_bound(end)); }

const Multicast* Memory::find_multicast(uint64_t address, uint64_t bytes) const {
  const uint64_t own = own_address(address);
  auto after = multicasts_.upper_bound(own);
  if (!is_of_gpu(address) || after == multicasts_.begin()) return nullptr;
  const Multicast& found = (--after)->second;
  return own + bytes <= found.end ? &found : nullptr;
}

void Memory::restrict(uint64_t region, const uint32_t* ranks) { extents_.at(regions_.at(region).address).reached_by = ranks; }

void Memory::share_with_host(uint64_t id) {
  Extent& extent = extents_.at(regions_.at(id).address);
  extent.reached_by = nullptr;
  extent.on_gpu = false;
  extent.written = nullptr;
}

bool Memory::remove(uint64_t id) {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return false;
  const RegionKind kind = found->second.kind;
  removals_ += kind != RegionKind::kShared && kind != RegionKind::kLocal;  // whose bytes the pools keep
  if (observer_) observer_->region_removed(found->second);
  if (kind == RegionKind::kAllocation || kind == RegionKind::kHost) note_freed(found->second.address, found->second.bytes, found->second.rank);
  const auto extent = extents_.find(found->second.address);
  if (extent != extents_.end() && extent->second.region == id) extents_.erase(extent);
  last_ = nullptr;
  regions_.erase(found);
  return true;
}

const Extent* Memory::find_slowly(uint64_t address, uint64_t bytes) {
  auto after = extents_.upper_bound(address);
  if (after == extents_.begin()) return nullptr;
  const Extent& extent = (--after)->second;
  if (address + bytes > extent.end || address + bytes < address) return nullptr;
  return last_ = &extent;
}

void Memory::set_written(uint64_t address, uint64_t bytes, bool written) {
  const Extent* const extent = find(address, bytes);
  if (!extent || !extent->written) return;
  uint64_t at = address - extent->begin;
  const uint64_t end = at + bytes;
  const auto set = [&](uint64_t from, uint64_t to) {  // within one byte of bits
    const auto mask = uint8_t(((1u << (to - from)) - 1) << from % 8);
    uint8_t& bits = extent->written[from / 8];
    bits = uint8_t(written ? bits | mask : bits & ~mask);
  };
  if (at % 8) {
    const uint64_t until = std::min(end, (at + 7) / 8 * 8);
    set(at, until);
    at = until;
  }
  std::memset(extent->written + at / 8, written ? 0xff : 0, (end - at) / 8);
  if (end % 8 && end / 8 * 8 >= at) set(end / 8 * 8, end);
}

uint64_t Memory::first_foreign(uint64_t address, uint64_t bytes, const char* before) {
  const Extent* const extent = find(address, bytes);
  if (!extent || !extent->written) return bytes;
  const auto* const now = reinterpret_cast<const char*>(address);
  const uint64_t begin = address - extent->begin;
  for (uint64_t i = 0; i < bytes;) {
    const uint64_t at = begin + i;
    if (at % 8 == 0 && i + 8 <= bytes && (extent->written[at / 8] == 0xff || (before && std::memcmp(now + i, before + i, 8) == 0))) {
      i += 8;
      continue;
    }
    const bool is_as_before = before ? now[i] == before[i] : now[i] == 0 || now[i] == char(kNewByte);
    if (!is_as_before && !(extent->written[at / 8] >> at % 8 & 1)) return i;
    ++i;
  }
  return bytes;
}

const Region* Memory::region(uint64_t id) const {
  const auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : &found->second;
}

void Memory::set_observer(Observer* observer) {
  observer_ = observer;
  if (!observer) return;
  for (const auto& [id, region] : regions_) observer->region_added(region);
}

std::string Memory::describe(uint64_t address) const {
  if (const Multicast* const multicast = find_multicast(address, 1)) {
    return "byte " + std::to_string(own_address(address) - multicast->begin) + " of multicast memory, which multimem instructions alone may use";
  }
  address = own_address(address);
  static constexpr const char* kKinds[] = {"segment", "argument", "output", "scratch", "signals", "allocation", "host memory",
                                           "variable", "constant", "parameters", "shared memory", "local memory"};
  const Region* best = nullptr;
  const Region* before = nullptr;
  for (const auto& [id, region] : regions_) {
    if (address >= region.address && address < region.address + region.bytes) {
      if (!best || region.bytes <= best->bytes) best = &region;
    } else if (address >= region.address + region.bytes && (!before || region.address > before->address)) {
      before = &region;
    }
  }
  const auto text = [&](const Region& region) {
    std::string name = kKinds[int(region.kind)];
    if (*region.name && name != region.name) name += std::string(" ") + region.name;
    return name + " of rank " + std::to_string(region.rank);
  };
  if (best) return text(*best) + ", byte " + std::to_string(address - best->address);
  for (auto freed = freed_.rbegin(); freed != freed_.rend(); ++freed) {
    if (address - freed->address >= freed->bytes) continue;
    return "byte " + std::to_string(address - freed->address) + " of memory of rank " + std::to_string(freed->rank) + " that has been freed or unmapped";
  }
  if (before && address - before->address - before->bytes < (1 << 20)) {
    return std::to_string(address - before->address - before->bytes) + " bytes beyond the end of " + text(*before);
  }
  return "no memory of any rank";
}

std::string Memory::describe(uint64_t address, int rank) {
  const Extent* const extent = find_seen(address, 1);
  if (!extent || extent->is_reached_by(rank)) return describe(address);
  return describe(address) + ", which GPU " + std::to_string(rank) + " has no access to: call cudaDeviceEnablePeerAccess(" + std::to_string(extent->rank) +
         ", 0) with GPU " + std::to_string(rank) + " as the current one, or cudaMemPoolSetAccess for memory of a pool";
}

Pool::~Pool() {
  for (char* memory : all_) std::free(memory);
}

char* Pool::take(uint64_t bytes) {
  auto& list = free_[bytes];
  if (!list.empty()) {
    char* const memory = list.back();
    list.pop_back();
    return memory;
  }
  const uint64_t rounded = (bytes + alignment_ - 1) / alignment_ * alignment_;
  char* const memory = static_cast<char*>(std::aligned_alloc(alignment_, rounded));
  if (!memory) throw std::bad_alloc();
  all_.push_back(memory);
  return memory;
}

void Pool::give_back(char* memory, uint64_t bytes) { free_[bytes].push_back(memory); }

}  // namespace pkb::emulator
