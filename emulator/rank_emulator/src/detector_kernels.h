// Running kernels, streams and host threads: where clocks begin and end, and the order between launches, copies, events
// and host code.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "detector_flags.h"
#include "detector_state.h"

namespace pkb::emulator::detector {

class Kernels {
 public:
  struct Stream {            // or a host thread
    Key key = 0;
    Past past;
    ClockRef enqueued;       // what the host knew when it enqueued the operation that began last
    uint64_t last_launch = 0;
    ClockRef last_initial;   // the past of that kernel's blocks at their beginning
    std::unordered_map<uint64_t, ClockRef> completed;  // what the end of kernels orders, by launch; of those that others may overlap
  };

  // `strict`: the boundary of a kernel is no fence for flags of other kernels.
  Kernels(Agents& agents, Clocks& clocks, Flags& flags, bool strict) : strict_(strict), agents_(agents), clocks_(clocks), flags_(flags) {}

  // The state of the warp of an event.
  WarpState& warp(const Warp& of);
  BlockState& block(const Launch& launch, uint32_t index);
  GridState& grid(const Launch& launch);
  // The state of the warp of a record, its last one where its block has ended; null where that is long ago, or where it is
  // no warp.
  WarpState* find(Key warp);

  void launch_begin(const Launch& launch);
  void launch_end(const Launch& launch);
  void block_begin(const Launch& launch, uint32_t index, uint32_t threads);
  void block_end(const Launch& launch, uint32_t index);
  // Adds what the threads of a block know at its end: what comes before it.
  void join_known(const BlockState& block, Known& to);
  ClockRef together(const Known& known);
  // Lanes have waited for the kernel that theirs may overlap (griddepcontrol.wait).
  void prerequisite_wait(const Warp& of);

  void enqueue(const StreamOperation& operation);
  void begin(const StreamOperation& operation);
  void end(const StreamOperation& operation);
  void host_waited_stream(int host, uint64_t stream);
  void host_waited_event(int host, uint64_t event, uint64_t generation);
  void host_joined(int host, int other);
  void host_unseen(int rank) { unseen_[rank] = clocks_.tick(); }
  // Whether host code of the rank's process has done something unseen since some time.
  bool is_unseen(int rank, Time since) const {
    const auto found = unseen_.find(rank);
    return found != unseen_.end() && since <= found->second;
  }
  Stream& host(int number);
  Stream& stream(uint64_t id) { return streams_.at(id); }  // in which an operation has begun
  // What has been done before a release comes before what follows an acquire of the same object.
  void release(Stream& by, uint64_t object);
  void acquire(Stream& by, uint64_t object);

  // An accessor for a stream operation by its id; for host code of a rank where it is none.
  Accessor stream_accessor(uint64_t operation, int rank);
  // An accessor for lanes of a warp, which have the same past as the first of them.
  Accessor lane_accessor(const WarpState& warp, uint32_t lanes) const;

  // The call that a rank's stream was in at some time; -1 before the first.
  int64_t call_at(int rank, Time time) const;
  int64_t call_of(int rank) const {
    const auto found = current_calls_.find(rank);
    return found == current_calls_.end() ? -1 : found->second;
  }
  void arrived(int rank, uint64_t call);

 private:
  struct Call {
    Time begin;
    uint64_t number;
  };

  Stream& stream(uint64_t id, int rank, bool is_default = false);
  // All that a stream's operations have done so far, as others learn it.
  ClockRef published(Stream& stream);

  const bool strict_;
  Agents& agents_;
  Clocks& clocks_;
  Flags& flags_;
  std::unordered_map<uint64_t, Stream> streams_;
  std::unordered_map<int, Stream> hosts_;                                // by number
  std::unordered_map<uint64_t, ClockRef> released_;                      // what hosts know that have released an object
  std::unordered_map<uint64_t, uint64_t> stream_of_operation_;
  std::unordered_map<uint64_t, ClockRef> enqueued_;                      // by operation
  std::unordered_map<uint64_t, std::unordered_map<uint64_t, ClockRef>> events_;  // by event and generation
  std::unordered_map<uint64_t, std::unique_ptr<GridState>> grids_;       // by launch
  static constexpr size_t kMostEnded = 256;
  std::unordered_map<uint32_t, BlockState*> blocks_;                     // by number: those that run, and `ended_`
  std::deque<BlockState> ended_;                                         // the last ones
  std::unordered_map<int, std::vector<Call>> calls_;
  std::unordered_map<int, int64_t> current_calls_;
  std::unordered_map<int, Time> unseen_;                                 // by rank: when host code was last not seen
  uint64_t last_launch_ = 0;
  uint32_t last_block_ = 0;
  BlockState* last_ = nullptr;
};

}  // namespace pkb::emulator::detector
