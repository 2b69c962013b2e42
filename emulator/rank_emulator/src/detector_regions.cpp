#include "detector_regions.h"

namespace pkb::emulator::detector {

namespace {

bool lies_in_segment(RegionKind kind) {
  return kind == RegionKind::kArgument || kind == RegionKind::kOutput || kind == RegionKind::kScratch ||
         kind == RegionKind::kSignals;
}

bool holds(const Region& region, uint64_t address) {
  return address >= region.address && address - region.address < region.bytes;
}

// The value of the last key up to an address, or null.
template <class Value>
const Value* last_until(const std::map<uint64_t, Value>& all, uint64_t address) {
  const auto next = all.upper_bound(address);
  return next == all.begin() ? nullptr : &std::prev(next)->second;
}

}  // namespace

void Regions::add(const Region& region) {
  if (region.kind == RegionKind::kSegment) {
    segments_[region.address].region = region;
    return;
  }
  if (lies_in_segment(region.kind)) {
    for (auto& [address, segment] : segments_) {
      if (holds(segment.region, region.address)) {
        segment.tensors[region.address] = region;
        return;
      }
    }
  }
  others_[region.address] = region;
}

void Regions::remove(const Region& region) {
  if (region.kind == RegionKind::kSegment) {
    segments_.erase(region.address);
    return;
  }
  for (auto& [address, segment] : segments_) {
    const auto found = segment.tensors.find(region.address);
    if (found != segment.tensors.end() && found->second.id == region.id) {
      segment.tensors.erase(found);
      return;
    }
  }
  const auto found = others_.find(region.address);
  if (found != others_.end() && found->second.id == region.id) others_.erase(found);
}

const Regions::Segment* Regions::segment_of(uint64_t address) const {
  const Segment* segment = last_until(segments_, address);
  return segment && holds(segment->region, address) ? segment : nullptr;
}

const Region* Regions::find(uint64_t address) const {
  if (const Segment* segment = segment_of(address)) {
    const Region* tensor = last_until(segment->tensors, address);
    return tensor && holds(*tensor, address) ? tensor : &segment->region;
  }
  const Region* other = last_until(others_, address);
  return other && holds(*other, address) ? other : nullptr;
}

int Regions::owner(uint64_t address) const {
  const Segment* segment = segment_of(address);
  if (segment) return segment->region.rank;
  const Region* other = last_until(others_, address);
  return other && holds(*other, address) ? other->rank : -1;
}

bool Regions::is_outside(uint64_t address, uint64_t bytes, const Region** before) const {
  const Segment* segment = segment_of(address);
  if (!segment || segment->tensors.empty()) return false;
  const Region* tensor = last_until(segment->tensors, address);
  *before = tensor;
  return !tensor || !holds(*tensor, address) || address + bytes > tensor->address + tensor->bytes;
}

std::vector<const Region*> Regions::of(int rank, RegionKind kind) const {
  std::vector<const Region*> found;
  for (const auto& [address, segment] : segments_) {
    for (const auto& [at, region] : segment.tensors) {
      if (region.rank == rank && region.kind == kind) found.push_back(&region);
    }
  }
  for (const auto& [at, region] : others_) {
    if (region.rank == rank && region.kind == kind) found.push_back(&region);
  }
  return found;
}

const char* text_of(RegionKind kind) {
  static const char* const kTexts[] = {"segment", "argument", "output", "scratch", "signals", "allocation", "host",
                                       "global_variable", "constant", "parameters", "shared", "local"};
  return kTexts[size_t(kind)];
}

}  // namespace pkb::emulator::detector
