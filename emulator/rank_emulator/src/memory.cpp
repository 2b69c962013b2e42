#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>

namespace pkb::emulator {

Mapping::Mapping(uint64_t bytes) : bytes_(bytes) {
  void* const found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(found);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
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

bool Memory::remove(uint64_t id) {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return false;
  const RegionKind kind = found->second.kind;
  removals_ += kind != RegionKind::kShared && kind != RegionKind::kLocal;  // whose bytes the pools keep
  if (observer_) observer_->region_removed(found->second);
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
  if (before && address - before->address - before->bytes < (1 << 20)) {
    return std::to_string(address - before->address - before->bytes) + " bytes beyond the end of " + text(*before);
  }
  return "no memory of any rank";
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
