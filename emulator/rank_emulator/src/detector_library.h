// Puts and gets of a library whose header marks them (LibraryMark), such as nvshmem.h: threads execute them, but what they
// access is complete, or delivered, later ("NVSHMEM API", "Memory Ordering").
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "detector_flags.h"
#include "detector_kernels.h"

namespace pkb::emulator::detector {

class LibraryOperations {
 public:
  LibraryOperations(Agents& agents, Clocks& clocks, Flags& flags, Kernels& kernels)
      : agents_(agents), clocks_(clocks), flags_(flags), kernels_(kernels) {}

  void mark(const Warp& of, LibraryMark mark, bool of_each_lane);
  // A host knows the puts and gets complete that it knows of.
  void host_quiet(int host, int rank);
  void launch_end(uint64_t launch);

  // The operation whose access one of a lane is; null: it is the lane's own.
  static const LibraryOperation* find(const WarpState& warp, int lane, bool writes);
  // The accessor of a lane's access of an operation. `past` is room for what it knows.
  Accessor accessor(const WarpState& warp, int lane, const LibraryOperation& operation, Past& past);

 private:
  struct Issue {
    Time time;
    uint32_t lanes;
  };
  // Operations of a warp that have a channel in common: an entry of a clock is of all up to a time.
  struct Channel {
    Key warp = 0;
    uint64_t launch = 0;
    LibraryMark kind{};
    std::deque<Issue> issues;  // the last ones
    bool awaits_signal = false, is_quiet = false, has_ended = false;
  };
  using Channels = std::map<Key, Channel>;  // of a rank

  static bool is_signalled(LibraryMark mark) { return mark == LibraryMark::kSignalledPut || mark == LibraryMark::kBlockingPut; }

  void begin(const Warp& of, LibraryMark mark, uint32_t lanes);
  void fence(const Warp& of);
  void quiet(const Warp& of);
  void signal(const Warp& of);
  Channels::value_type& channel_of(const Warp& of, Key warp, LibraryMark kind, uint32_t lanes);
  // An entry for each channel of a rank, with the last of its operations that `knows`.
  template <class Knows>
  std::vector<Entry> known(int rank, bool delivers, const Knows& knows);
  template <class Change>
  void change_pasts(const Warp& of, const Change& change);

  Agents& agents_;
  Clocks& clocks_;
  Flags& flags_;
  Kernels& kernels_;
  std::unordered_map<int, Channels> channels_;                       // by rank
  std::map<std::pair<Key, LibraryMark>, std::vector<Key>> of_warp_;  // the last one last
};

}  // namespace pkb::emulator::detector
