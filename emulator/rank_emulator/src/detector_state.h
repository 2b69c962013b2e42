// The past of the lanes of running kernels, and what they have published.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "detector_agents.h"

namespace pkb::emulator::detector {

// A value of each lane of a warp, kept once while all are the same.
template <class T>
class PerLane {
 public:
  PerLane() = default;
  explicit PerLane(const T& value) : common_(value) {}

  bool is_uniform() const { return !each_; }
  const T& at(int lane) const { return each_ ? (*each_)[size_t(lane)] : common_; }

  // Changes the values of some lanes, each by change(value): once where all of the warp's lanes change alike.
  template <class Change>
  void change(uint32_t lanes, uint32_t all_lanes, const Change& change) {
    if (!each_ && (lanes & all_lanes) == all_lanes) return change(common_);
    if (each_) {
      for (; lanes; lanes &= lanes - 1) change((*each_)[size_t(__builtin_ctz(lanes))]);
      return;
    }
    T changed = common_;
    change(changed);
    if (changed == common_) return;  // as of most polls
    each_ = std::make_unique<std::array<T, kLanes>>();
    each_->fill(common_);
    for (; lanes; lanes &= lanes - 1) (*each_)[size_t(__builtin_ctz(lanes))] = changed;
  }

  // Goes back to one value if all lanes have it.
  void unite(uint32_t all_lanes) {
    if (!each_ || !all_lanes) return;
    const T& first = (*each_)[size_t(__builtin_ctz(all_lanes))];
    for (uint32_t lanes = all_lanes; lanes; lanes &= lanes - 1) {
      if (!((*each_)[size_t(__builtin_ctz(lanes))] == first)) return;
    }
    common_ = first;
    each_.reset();
  }

 private:
  T common_{};
  std::unique_ptr<std::array<T, kLanes>> each_;
};

constexpr int kScopes = 4;  // cta, cluster, gpu, sys
constexpr int index_of(Scope scope) { return scope == Scope::kNone ? 0 : int(scope) - int(Scope::kCta); }

// What a lane knew at its last fence of a scope: a later strong store publishes it (PTX's release pattern).
struct FencePoint {
  Past past;
  Time time = 0;       // of the lane's own accesses that come before; 0: the beginning of its kernel
  uint32_t site = 0;   // of the fence; 0: the beginning of its kernel

  bool operator==(const FencePoint& other) const { return past == other.past && time == other.time && site == other.site; }
};

using ScopedClocks = std::array<ClockRef, kScopes>;

// Fences of sequential consistency, around a strong store and a load that observes it, as far as barriers of the warp or
// block, and for system scope flags too, lead to the store, and barriers away from the load. Other threads may execute
// them.
struct SequentialFences {
  std::array<FencePoint, kScopes> own;  // by scope: the lane's last one of at least this scope, until it leaves a barrier
  ScopedClocks before;                  // by scope: what came before fences that barriers lead on from
  ScopedClocks observed;                // by distance of the writer: what came before its store's fences

  bool operator==(const SequentialFences& other) const {
    return own == other.own && before == other.before && observed == other.observed;
  }
};

// What a lane's fences wait for or have done.
struct Fences {
  std::array<FencePoint, kScopes> released;  // by scope: the last fence of at least this scope
  std::array<ClockRef, kScopes> read;        // by distance of the writer: what strong loads have seen and no fence has acquired
  ClockRef proxied_global, proxied_shared;   // what proxy fences lead from
  ClockRef initialised;                      // what came before fence.mbarrier_init, its own or beyond a relaxed cluster barrier
  SequentialFences sequential;
  // What came before fences.sc of system scope: as of `released`, and what `read` brings of it.
  ScopedClocks sequential_released, sequential_read;

  bool operator==(const Fences& other) const {
    return released == other.released && read == other.read && proxied_global == other.proxied_global &&
           proxied_shared == other.proxied_shared && initialised == other.initialised &&
           sequential == other.sequential && sequential_released == other.sequential_released &&
           sequential_read == other.sequential_read;
  }
};

// A put or get that lanes of a warp execute: its accesses are not theirs, but of a channel.
struct LibraryOperation {
  uint32_t lanes = 0;
  Key channel = 0;
  Time time = 0;
  bool is_put = false, reads = false;  // reads: it is their source that it reads, not they
};
// Lanes between LibraryMark::kSignal and kEnd, and what their strong stores deliver besides.
struct Signalling {
  uint32_t lanes = 0;
  ClockRef delivered;
};

// What a strong store of some lanes of a warp published.
struct Release {
  Key warp = 0;
  uint32_t lanes = 0;
  Time time = 0;
  uint32_t site = 0;
  bool is_release = false;   // has release order itself
  Scope scope = Scope::kNone;
  Past past;
  std::array<FencePoint, kScopes> fences;
  ClockRef proxied_global, proxied_shared;
  SequentialFences sequential;
  ScopedClocks sequential_released;
  ClockRef initial;          // what came before its kernel
  ClockRef delivered;        // of a signal: its own put
};

struct WarpState {
  Key key = 0;
  uint32_t all_lanes = 0;    // that exist
  Time epoch = 0;            // of its accesses: after its last release
  PerLane<Past> past;
  PerLane<Fences> fences;
  struct Match {
    Time time;
    uint32_t lanes;
  };
  std::vector<Match> matches;  // the last ones
  ClockRef initial;          // what came before its kernel, as loads of `boundary` acquire it
  uint32_t boundary = 0;     // lanes between LibraryMark::kBoundary and kEnd
  std::vector<LibraryOperation> operations;
  std::vector<Signalling> signalling;
  std::unordered_map<const SourceLine*, uint32_t> used;  // by load that may stay unused: lanes that have used its value
};

// A meeting of warps: one generation of a barrier.
struct Meeting {
  uint64_t generation = 0;
  ClockRef base, proxied_global, proxied_shared, initialised;
  ScopedClocks sequential, observed;  // of SequentialFences
  Time block_time = 0;
  std::vector<Entry> entries;  // of those that arrived
  uint32_t lanes = 0;          // that arrived
  bool all_wait = true;        // none arrived without waiting
  bool is_closed = false;
  Time closed = 0;
};

struct BlockState {
  uint32_t number = 0;         // of Agents
  uint64_t launch = 0;
  uint32_t threads = 0, exited = 0;
  std::vector<WarpState> warps;
  std::unordered_map<uint32_t, std::array<Meeting, 2>> barriers;  // by number and parity of the generation
};

// By distance, what loads have seen and no fence has acquired; then the past. Apart, since what one counter has told many
// threads is quick to join.
using Known = std::array<ClockRef, kScopes + 1>;

struct GridState {
  uint32_t number = 0;         // of Agents
  Key stream = 0;
  uint32_t blocks_per_cluster = 1;
  ClockRef initial;            // the past of its blocks at their beginning
  Known end;                   // to those that have ended
  Time begin = 0;
  std::unordered_map<uint32_t, BlockState> blocks;                  // that run
  std::unordered_map<uint32_t, std::array<Meeting, 2>> clusters;    // barriers of clusters, by cluster
};

}  // namespace pkb::emulator::detector
