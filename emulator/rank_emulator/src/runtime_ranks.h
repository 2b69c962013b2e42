// What ranks share beside memory: exchanges of their hosts, and allocations of the symmetric heap.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime_world.h"

namespace pkb::emulator {

struct Exchange {
  uint64_t round = 0;                     // grows when all have come, and when all have left
  std::string name;                       // of the one under way
  std::vector<std::vector<char>> given;   // by rank
  std::vector<EventRecord> arrivals;      // of the hosts, by rank
  int arrived = 0, left = 0;
};

struct SymmetricBlock {
  uint64_t bytes, region;
};

struct SharedState {
  Exchange exchange;
  std::vector<std::map<uint64_t, SymmetricBlock>> symmetric;  // allocations of each rank's heap, by offset
};

SharedState& shared_state(World& world);

}  // namespace pkb::emulator
