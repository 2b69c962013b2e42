// What ranks share beside memory: exchanges of their hosts, and allocations of the symmetric heap.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime_process.h"
#include "runtime_world.h"

namespace pkb::emulator {

struct Exchange {
  uint64_t round = 0;                     // grows when all have come, and when all have left
  std::string name;                       // of the one under way
  std::vector<std::vector<char>> given;   // by member
  uint64_t object = 0;                    // by which those that leave come after those that have arrived
  int arrived = 0, left = 0;
};

struct SymmetricBlock {
  uint64_t bytes, region;
};

class Aliases;
struct Mail;
struct PhysicalMemory;

// Physical memory at an address that a rank has reserved.
struct VirtualMapping {
  PhysicalMemory* memory;
  uint64_t bytes, offset;
  bool is_accessible;
};

struct SharedState {
  SharedState() = default;
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;
  ~SharedState();

  Exchange exchange;                                          // of all processes
  std::map<uint64_t, Exchange> groups;                        // of threads of one process, by what they have in common
  std::shared_ptr<Mail> mail;                                 // messages; null: there have been none
  std::map<uint64_t, uint64_t> awaited;                       // threads that have come, by group
  std::map<const void*, Meeting> meetings;                    // mutexes and the like of programs, by address
  std::map<int, RankState*> devices_of_pool;                  // that threads of OpenMP have chosen, by number
  std::map<PhysicalMemory*, std::shared_ptr<PhysicalMemory>> physical;
  std::map<uint64_t, uint64_t> reserved;                      // bytes of reserved ranges, by own address
  std::map<uint64_t, VirtualMapping> mappings;                // by own address
  std::map<uint64_t, Mapping> multicasts;                     // addresses of multicast that libraries have made; nothing lies there
  std::shared_ptr<Aliases> aliases;                           // null: no memory has several addresses, or nobody observes
  std::vector<std::map<uint64_t, SymmetricBlock>> symmetric;  // allocations of each rank's heap, by offset
};

SharedState& shared_state(World& world);

}  // namespace pkb::emulator
