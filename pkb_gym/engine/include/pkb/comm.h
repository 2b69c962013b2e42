// The record that every native kernel receives as its last argument: who it is, where the peers' memory lies.
//
// A plain struct of fixed layout, written by the rank program (wire/abi.py mirrors it field by field) and
// handed over as an opaque pointer. It is copied by value, also into GPU kernels.
#pragma once

#include <cstdint>

namespace pkb {

constexpr uint32_t kMagic = 0x504b4243;  // "PKBC"
constexpr uint32_t kVersion = 3;
constexpr char kCommType[] = "pkb::Comm (version 3)";
constexpr int kMaxRanks = 16;
constexpr int kMaxGroups = 4;

// Signal pad of each rank: kUserSignals words for the kernel, then words that barrier() and, inside GPU kernels,
// barrier_blocks() and signal_begun() use.
constexpr int kUserSignals = 1024;
constexpr int kBarrierSignals = (kMaxGroups + 1) * kMaxRanks;
constexpr int kMaxBlocks = 1024;
constexpr int kMaxPhases = 64;
constexpr int kBlockSignals = kMaxBlocks * kMaxRanks;

// One process group that the problem passes as an argument (or the world).
struct Group {
  int32_t size;                 // ranks in the group
  int32_t rank;                 // this rank's place in it, -1 if it is not in it
  int32_t ranks[kMaxRanks];     // global rank of each place
};

// What profiling counts in one rank; only put(), get(), signal(), wait() and barrier() are seen.
struct Stats {
  uint64_t wait_ns;
  uint64_t copy_ns;
  uint64_t put_bytes;
  uint64_t got_bytes;
  uint64_t signals;
  uint64_t waits;
};

// Where this rank stands, for the report when a deadline passes. Written by the rank, read by the evaluator.
enum class State : uint32_t { kIdle = 0, kLoading = 1, kAtGate = 2, kInCall = 3, kWaiting = 4, kDone = 5 };
struct Place {
  State state;
  int32_t slot;                 // kWaiting: word of the signal pad
  uint64_t want;                // kWaiting: value waited for
  uint64_t call;                // number of the call within its block, from 0
};

struct CommData {
  uint32_t magic;
  uint32_t version;
  int32_t rank;
  int32_t world_size;
  int32_t num_groups;
  int32_t oversubscribed;       // more ranks than processors: waiting must give the processor away
  uint64_t epoch;               // 1 on the first call, grows by one each call, equal on all ranks
  void* stream;                 // CUDA stream; null on the CPU
  uint64_t segment_bytes;       // addressable bytes of each rank's segment
  uint64_t scratch_offset;      // symmetric scratch: zero when the kernel is loaded, never touched afterwards
  uint64_t scratch_bytes;
  uint64_t signal_offset;       // signal pad: uint64_t words, zero when the kernel is loaded
  uint64_t* barrier_counts;     // this rank's own counter per group, world first; host memory
  Stats* stats;                 // null unless profiling; GPU memory on a GPU
  Place* place;                 // host memory, which a GPU can write too
  uint64_t hold_ns;             // in some checked calls: how long wait() and barriers hold this rank back afterwards
  char* segments[kMaxRanks];    // where each rank's segment lies in this process
  Group groups[kMaxGroups];     // the problem's group arguments, by index
};

}  // namespace pkb
