// Vector clocks over a tree of agents.
//
// Times are one count for the whole world that grows at each release (`Clocks::tick`); an access carries the time of its
// warp's last release. An entry (key, t) of a clock says that all accesses of the agents below `key` up to time t happen
// before its owner's next access: a lane, a warp, a block, a grid or a whole stream is one entry. FastTrack (Flanagan and
// Freund, PLDI 2009) compares a clock with one epoch (agent, time) an access; so does `covers`. That warps and blocks
// which meet at a barrier share an entry is the compression of Barracuda (Eizenberg et al., PLDI 2017).
//
// Clocks of ten thousand entries are common where each thread of a grid adds to a counter behind a fence, and each of these
// threads keeps the one that it has seen. So a large clock is another one, its base, and the entries that are later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pkb::emulator::detector {

using Key = uint32_t;  // kind in the upper 3 bits, index below
using Time = uint32_t;  // from 1; 0: never

// kDelivery: of a channel of puts: what its issuer's fences have ordered before the flags that they will store; whoever
// observes such a flag knows as much of the channel.
enum class AgentKind : uint32_t { kLane, kWarp, kBlock, kGrid, kStream, kChannel, kDelivery };

constexpr uint32_t kIndexBits = 29;
constexpr Key key_of(AgentKind kind, uint32_t index) { return uint32_t(kind) << kIndexBits | index; }
constexpr AgentKind kind_of(Key key) { return AgentKind(key >> kIndexBits); }
constexpr uint32_t index_of(Key key) { return key & ((1u << kIndexBits) - 1); }
constexpr Key lane_key(Key warp, int lane) { return key_of(AgentKind::kLane, index_of(warp) * 32 + uint32_t(lane)); }

struct Entry {
  Key key;
  Time time;
};

struct Clock;

class ClockRef {
 public:
  ClockRef() = default;
  explicit ClockRef(Clock* clock) : clock_(clock) { take(); }
  ClockRef(const ClockRef& other) : clock_(other.clock_) { take(); }
  ClockRef(ClockRef&& other) noexcept : clock_(std::exchange(other.clock_, nullptr)) {}
  ClockRef& operator=(ClockRef other) noexcept {
    std::swap(clock_, other.clock_);
    return *this;
  }
  ~ClockRef() {
    if (clock_) drop(clock_);
  }

  const Clock* get() const { return clock_; }
  const Clock* operator->() const { return clock_; }
  explicit operator bool() const { return clock_ != nullptr; }
  bool operator==(const ClockRef& other) const { return clock_ == other.clock_; }

 private:
  static void drop(Clock* clock);
  static void take(Clock* clock);
  void take() {
    if (clock_) take(clock_);
  }

  Clock* clock_ = nullptr;
};

// A clock that never changes once it is shared. Entries are sorted by key.
struct Clock {
  explicit Clock(uint64_t serial) : serial(serial) {}

  const uint64_t serial;     // of all clocks there have been, from 1
  uint32_t references = 0;
  uint32_t pruned_size = 0;  // entries when those that ancestors cover were last dropped
  Time latest = 0;           // of all entries
  ClockRef base;             // whose entries are of this clock, too, unless there are later ones; has no base itself
  std::vector<Entry> entries;
  // Of a large clock: it covers all earlier ones of its lineage.
  mutable uint32_t lineage = 0, generation = 0;
  mutable bool has_heir = false;

  const Clock& bottom() const { return base ? *base.get() : *this; }
  bool is_empty() const { return entries.empty() && !base; }
  Time time_of(Key key) const;
  bool has_deliveries() const;
  std::vector<Entry> of_kind(AgentKind kind) const;
};

inline void ClockRef::take(Clock* clock) { ++clock->references; }
inline void ClockRef::drop(Clock* clock) {
  if (--clock->references == 0) delete clock;
}

// Who is below whom.
class AgentTree {
 public:
  virtual ~AgentTree() = default;
  // The next agent up whose entry covers this one's accesses; 0 at the top.
  virtual Key parent(Key key) const = 0;
  // Number of lanes of a warp.
  virtual uint32_t lanes(Key warp) const = 0;
};

// Makes clocks and holds the world's time.
class Clocks {
 public:
  explicit Clocks(const AgentTree& tree) : tree_(tree), joins_(kJoins) {}

  Time now() const { return now_; }
  // The present time, to be published; what comes afterwards is later.
  Time tick() { return now_++; }

  // The least clock that covers both; one of them, where it does so. Null clocks are empty.
  ClockRef join(const ClockRef& a, const ClockRef& b);
  // The same with entries, which need not be sorted; times of 0 say nothing.
  ClockRef with(const ClockRef& base, const Entry* entries, int count);

 private:
  struct Join {
    ClockRef a, b, result;
  };
  // Where a lineage has left another one; 0: it has not.
  struct Branch {
    uint32_t lineage = 0, generation = 0;
  };
  static constexpr size_t kLeastPruned = 24;
  static constexpr size_t kLeastShared = 256;  // entries of a base
  static constexpr size_t kJoins = 512;        // remembered: the lanes and blocks of a grid ask for the same ones

  // Whether every entry of `b` is in `a` already.
  bool contains(const Clock& a, const Clock& b) const;
  // Whether the first covers the other one, as their lineages tell.
  bool descends(const Clock& from, const Clock& of) const;
  void make_heir(const Clock& of, const Clock& heir);
  ClockRef merged(const ClockRef& a, const ClockRef& b);
  // A clock and later entries, sorted.
  ClockRef extended(const ClockRef& clock, std::span<const Entry> news);
  ClockRef flat(std::span<const Entry> a, std::span<const Entry> b, Time latest, uint32_t pruned_size);
  ClockRef make(Entry* end, Time latest, uint32_t pruned_size);
  // Adds entries of warps all of whose lanes have one to the merged entries; returns the end.
  Entry* with_whole_warps(Entry* end);

  const AgentTree& tree_;
  Time now_ = 1;
  uint64_t made_ = 0;
  std::vector<Join> joins_;
  std::vector<Branch> branches_ = {{}};  // by lineage, from 1
  std::vector<Entry> scratch_, merged_, kept_, changes_, whole_[2];
};

}  // namespace pkb::emulator::detector
