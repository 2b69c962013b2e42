// Barriers of warps, blocks and clusters, and mbarriers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "detector_kernels.h"

namespace pkb::emulator::detector {

constexpr uint32_t kMbarrierBytes = 8;

class Barriers {
 public:
  Barriers(Agents& agents, Clocks& clocks, Flags& flags, Kernels& kernels)
      : agents_(agents), clocks_(clocks), flags_(flags), kernels_(kernels) {}

  // match.sync: remembers when which lanes have come to it.
  void match(const Warp& of);
  void warp_barrier(const Warp& warp);
  // `waits`: of bar.sync and bar.red, false for bar.arrive.
  void arrive(const Warp& warp, uint32_t barrier, uint64_t generation, bool waits);
  void leave(const Warp& warp, uint32_t barrier, uint64_t generation);
  void cluster_arrive(const Warp& warp, bool releases, uint64_t generation);
  void cluster_leave(const Warp& warp, bool acquires, uint64_t generation);
  void exit(const Warp& warp);

  // mbarriers, by address. To the memory model each is a word: an arrival is a strong store, as of an atomic, and a wait a load
  // that observes those of the phase.
  void init(uint64_t address, const Record& by) {
    invalidate(address);
    mbarriers_[address].initialised = by;
  }
  // The mbarrier.init of an mbarrier; none where it is not known.
  Record initialised(uint64_t address) const {
    const auto found = mbarriers_.find(address);
    return found == mbarriers_.end() ? Record() : found->second.initialised;
  }
  void invalidate(uint64_t address) {
    mbarriers_.erase(address);
    flags_.forget(address, kMbarrierBytes);
  }
  void arrive_mbarrier(const Warp& warp, uint64_t address, const Site& site, uint32_t site_number);
  void expect(uint64_t address, uint32_t bytes, const Record& by);
  // An asynchronous operation of a channel has completed: all of it up to `time`.
  void complete_operation(uint64_t address, Key channel, Time time);
  // Returns the instruction that announced the bytes of the phase before, where nobody has waited for them.
  Record complete(uint64_t address);
  void wait(const Warp& warp, uint64_t address, const Site& site, uint32_t site_number);

  // An mbarrier whose copies nobody waited for.
  struct Leak {
    uint64_t address;
    Record announced;   // the instruction that announced the bytes
    bool is_pending;    // the phase has not completed, else nobody has waited for it
  };
  // Takes the mbarriers of a range, of shared memory that ends.
  std::vector<Leak> end(uint64_t address, uint64_t bytes);

 private:
  // What has arrived in the phase under way is carried by the word at this distance behind that of the last complete one.
  static constexpr uint64_t kUnderWay = 4;
  struct Mbarrier {
    // Asynchronous operations that are known to be complete: those of the mbarrier, and those that arrivals of any scope know
    // of. A tile goes back to the copy engine by an arrival of block scope, which says nothing of ordinary accesses beyond.
    ClockRef completed;
    std::vector<Entry> entries;
    ClockRef done;                                  // the same of the last complete phase
    Record initialised;                             // its mbarrier.init
    Record expecting;                               // the instruction that announced bytes of the phase under way
    Record unwaited;                                // the same of the last complete phase, until somebody waits for it
  };

  void join_arrival(Meeting& meeting, WarpState& warp, uint32_t lanes, bool waits, bool releases);
  ClockRef channels_of(const ClockRef& clock);
  ClockRef clock_of_arrival(WarpState& warp, uint32_t lanes, std::vector<Entry>& entries);
  static Meeting& meeting_of(std::array<Meeting, 2>& meetings, uint64_t generation);

  Agents& agents_;
  Clocks& clocks_;
  Flags& flags_;
  Kernels& kernels_;
  std::unordered_map<uint64_t, Mbarrier> mbarriers_;
};

}  // namespace pkb::emulator::detector
