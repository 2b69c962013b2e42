// Shared memory of blocks of a cluster that have ended: other blocks must be done with it by then (CUDA programming guide,
// "Distributed Shared Memory").
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "detector_equal_stores.h"
#include "detector_kernels.h"
#include "detector_report.h"
#include "detector_shadow.h"

namespace pkb::emulator::detector {

class EndedBlocks {
 public:
  EndedBlocks(const Agents& agents, const Sites& sites, Kernels& kernels, Shadow& shadow, const EqualStores& equal_stores, Report& report)
      : agents_(agents), sites_(sites), kernels_(kernels), shadow_(shadow), equal_stores_(equal_stores), report_(report) {}

  void region_added(const Region& region) { regions_.try_emplace({region.launch, region.block}, Bytes{region.address, region.bytes}); }
  void region_removed(const Region& region);

  // Whether blocks of a launch have peers.
  static bool concerns(const Launch& launch) { return launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1; }
  // Lanes of such a block have ended by an instruction.
  void exit(const Warp& warp, uint32_t site);
  // A block ends: finds accesses of other blocks that are not ordered before its end.
  void end(const Launch& launch, uint32_t block);
  // An access of an asynchronous operation, which may come after the end.
  void access(const Record& access, uint64_t address, uint64_t bytes);

 private:
  struct Bytes {
    uint64_t begin, count;
  };
  // The block of a thread, or of the issuer of an asynchronous operation; false: it is neither.
  bool is_of_another_block(const Record& access, uint32_t block) const;
  // Whether a strong load of the block has observed an earlier strong store.
  bool has_observed(const Cell& cell, uint32_t block);
  void found(const Record& access, const Record& end, uint64_t address, uint64_t bytes);

  const Agents& agents_;
  const Sites& sites_;
  Kernels& kernels_;
  Shadow& shadow_;
  const EqualStores& equal_stores_;
  Report& report_;
  std::map<std::pair<uint64_t, uint32_t>, Bytes> regions_;  // shared memory, by launch and block
  std::map<std::pair<uint64_t, uint32_t>, Record> exits_;   // the last one of a block that may have peers
  std::map<uint64_t, std::pair<uint64_t, Record>> ended_;   // memory of ended blocks, by address: its end, and how they ended
};

}  // namespace pkb::emulator::detector
