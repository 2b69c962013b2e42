// Plain stores of one value to the same bytes that nothing orders, as where each warp fills a table with the same values
// and reads it after __syncwarp(): the last of them stands in shadow memory, the others here.
//
// None of them is ordered before another; a store of another value, or one that comes after all of them, ends them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "detector_shadow.h"

namespace pkb::emulator::detector {

class EqualStores {
 public:
  // Calls visit(record) for the stores that have written all bytes of a cell.
  template <class Visit>
  void for_each(uint64_t address, uint32_t bytes, const Visit& visit) const {
    const auto line = lines_.find(address / Shadow::kLineBytes);
    if (line == lines_.end()) return;
    const uint32_t mask = mask_of(address, bytes);
    for (const Entry& entry : line->second) {
      if ((entry.mask & mask) == mask) visit(entry.record);
    }
  }

  // The stores to a cell from now on.
  void replace(uint64_t address, uint32_t bytes, const std::vector<Record>& stores) {
    std::vector<Entry>& line = lines_[address / Shadow::kLineBytes];
    const uint32_t mask = mask_of(address, bytes);
    std::erase_if(line, [&](Entry& entry) { return (entry.mask &= ~mask) == 0; });
    for (const Record& record : stores) line.push_back({record, mask});
    if (line.empty()) lines_.erase(address / Shadow::kLineBytes);
  }

 private:
  struct Entry {
    Record record;
    uint32_t mask;  // bytes of the line
  };

  // Cells lie within a line.
  static uint32_t mask_of(uint64_t address, uint32_t bytes) {
    return ((1u << bytes) - 1) << address % Shadow::kLineBytes;
  }

  std::unordered_map<uint64_t, std::vector<Entry>> lines_;
};

}  // namespace pkb::emulator::detector
