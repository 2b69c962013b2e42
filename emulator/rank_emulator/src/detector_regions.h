// Names of memory: which tensor, whose, and which element an address is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "events.h"

namespace pkb::emulator::detector {

class Regions {
 public:
  void add(const Region& region);
  void remove(const Region& region);

  // The innermost region that holds an address, or null.
  const Region* find(uint64_t address) const;
  // The rank whose memory an address is, -1 where it is nobody's heap or allocation.
  int owner(uint64_t address) const;
  // Whether an address lies in a rank's segment, but in none of the tensors that have been named there; then the tensor
  // that ends last before it, or null.
  bool is_outside(uint64_t address, uint64_t bytes, const Region** before) const;
  // A rank's arguments, or its outputs.
  std::vector<const Region*> of(int rank, RegionKind kind) const;

 private:
  struct Segment {
    Region region;
    std::map<uint64_t, Region> tensors;  // by address
  };

  const Segment* segment_of(uint64_t address) const;

  std::map<uint64_t, Segment> segments_;   // by address
  std::map<uint64_t, Region> others_;      // by address; they do not overlap
};

const char* text_of(RegionKind kind);

}  // namespace pkb::emulator::detector
