// The agents of a world: lanes in warps, blocks, grids and streams; host threads; channels of asynchronous operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "detector_clock.h"
#include "events.h"

namespace pkb::emulator::detector {

constexpr Time kAlways = ~Time(0);

// One access as shadow memory keeps it: an epoch of FastTrack, of lanes that execute one instruction together.
struct Record {
  Key who = 0;                      // warp, stream or channel
  Time time = 0;                    // 0: none
  uint32_t site : 29 = 0;           // of `Sites`
  uint32_t precedes_write : 1 = 0;  // of a read: it came before its cell's last write, and has not observed it
  uint32_t follows_own : 1 = 0;     // of a read: a store of its own block precedes it, of the value that it reads
  uint32_t has_equals : 1 = 0;      // of a write: stores of the same value stand beside it, in `EqualStores`
  uint32_t lanes = 0;               // of a warp

  Record() = default;
  Record(Key who, Time time, uint32_t site, uint32_t lanes) : who(who), time(time), site(site), lanes(lanes) {}

  bool present() const { return time != 0; }
};

// The causal past of a lane or a stream: what happens before its next access. Own lanes are not in it.
struct Past {
  ClockRef base;        // of all agents
  Time block_time = 0;  // of its own block, up to the last barrier
  Time warp_time = 0;   // of its own warp

  bool operator==(const Past& other) const {
    return base == other.base && block_time == other.block_time && warp_time == other.warp_time;
  }
};

// Who accesses, and its past: lanes of a warp, a stream or an asynchronous operation.
struct Accessor {
  const Past* past = nullptr;
  Key who = 0;
  uint32_t lanes = 0;        // of a warp
  Time time = 0;             // of its accesses
  Key own_warp = 0;          // whose accesses of `own_lanes` up to `own_time` come first: its own, or its issuer's
  uint32_t own_lanes = 0;
  Time own_time = 0;
  uint32_t block = 0;        // its own, as an index of Agents
  Key first_warp = 0;        // of its block; no warps: not given
  uint32_t warps = 0;
  bool in_block = false;
  int rank = 0;
  bool needs_proxy = false;  // accesses by the async proxy
  bool non_coherent = false; // loads by ld.global.nc
  const Clock* proxied = nullptr;  // generic accesses that a proxy fence leads from to here
};

struct BlockInfo {
  uint32_t grid;      // index of grids
  uint32_t index;     // in the grid, linear
  uint32_t cluster;   // unique in the grid
  uint32_t first_warp;
  uint32_t threads;
};

struct GridInfo {
  uint32_t stream;    // index of streams
  int rank;
  std::string kernel;
  Time begin;
};

struct StreamInfo {
  uint64_t id;        // of the events; a rank's host thread has none
  int rank;
  bool is_host;
  bool is_default;    // a default stream of CUDA
};

// Asynchronous operations of one issuer that complete in one way: at one mbarrier, or by groups.
struct ChannelInfo {
  uint32_t grid;
  Key warp;           // that issues
  uint32_t lanes;
  Completion completion;
  bool reads;         // of bulk groups, whose reads complete before their writes
  bool outlives_kernel = false;  // whose end says nothing of its completion
};

class Agents : public AgentTree {
 public:
  Agents();

  Key parent(Key key) const override;
  uint32_t lanes(Key warp) const override;

  Key add_stream(uint64_t id, int rank, bool is_host, bool is_default);
  uint32_t add_grid(Key stream, int rank, const char* kernel, Time begin);
  uint32_t add_block(uint32_t grid, uint32_t index, uint32_t cluster, uint32_t threads);
  Key add_channel(const ChannelInfo& channel);

  const BlockInfo& block(uint32_t index) const { return blocks_[index]; }
  const BlockInfo& block_of(Key warp) const { return blocks_[warp_blocks_[index_of(warp)]]; }
  uint32_t block_index_of(Key warp) const { return warp_blocks_[index_of(warp)]; }
  const GridInfo& grid(uint32_t index) const { return grids_[index]; }
  bool is_on_default_stream(uint32_t grid) const { return streams_[grids_[grid].stream].is_default; }
  const StreamInfo& stream(Key key) const { return streams_[index_of(key)]; }
  const ChannelInfo& channel(Key key) const { return channels_[index_of(key)]; }

  int rank_of(Key who) const;
  // The smallest scope that holds both: kCta .. kSys. Of channels their issuers count; streams are as far as their rank.
  Scope distance(Key a, Key b) const;

  // Whether all of a record's accesses are in a clock.
  bool covers(const Clock* clock, const Record& record) const;
  bool in_past(const Past& past, Key own_warp, uint32_t own_block, bool in_block, const Record& record) const;
  // Whether a record happens before an accessor's next access.
  bool ordered(const Accessor& to, const Record& record, bool record_is_generic) const {
    return follows_in_block(to, record) || ordered_by_clocks(to, record, record_is_generic);
  }
  // Whether it does so as an access of the same lane, or of the block before a barrier: most do.
  static bool follows_in_block(const Accessor& to, const Record& record) {
    if (record.who - to.first_warp >= to.warps || to.needs_proxy) return false;
    if (record.time <= to.past->block_time) return true;
    if (record.who != to.own_warp) return false;
    return record.time <= to.past->warp_time ||
           (record.time <= to.own_time && record.lanes == to.own_lanes && (record.lanes & (record.lanes - 1)) == 0);
  }

 private:
  bool ordered_by_clocks(const Accessor& to, const Record& record, bool record_is_generic) const;
  // The latest time that a clock has for an agent or what is above it; remembered, since neighbours are asked for alike.
  Time time_above(const Clock& clock, Key who) const;

  struct Remembered {
    uint64_t clock = 0;  // serial
    Key who = 0;
    Time time = 0;
  };
  static constexpr size_t kRemembered = 1024;

  mutable std::vector<Remembered> remembered_;
  std::vector<uint32_t> warp_blocks_;
  std::vector<BlockInfo> blocks_;
  std::vector<GridInfo> grids_;
  std::vector<StreamInfo> streams_;
  std::vector<ChannelInfo> channels_;
};

// A kind of access: an instruction at a place, or a stream operation.
struct Site {
  std::string what;
  const SourceLine* line;
  Operation operation;
  Order order;
  Scope scope;
  Space space;
  Proxy proxy;
  uint32_t element_bytes;
  bool is_strong;         // of PTX's model: volatile, relaxed and stronger, and atomics
  bool is_non_coherent;   // ld.global.nc
  bool is_arrival, is_departure;
  bool decides;           // of loads: whether a branch may depend on the value, as on that of a flag
  bool may_be_unused;     // of loads: whether lanes may never use the value
};

// Gives sites their numbers, from 1.
class Sites {
 public:
  Sites() : sites_(1), is_strong_(1), last_accesses_(kLastAccesses) {}

  uint32_t of(const Access& access);
  uint32_t of(const RangeAccess& access);
  uint32_t of(const Site& site);
  const Site& operator[](uint32_t number) const { return sites_[number]; }
  bool is_strong(uint32_t number) const { return is_strong_[number]; }

 private:
  uint32_t find(uint64_t hash, const Site& like, const char* what);

  struct LastRange {
    const void *what = nullptr, *line = nullptr;
    Operation operation{};
    Proxy proxy{};
    Space space{};
    uint32_t element_bytes = 0;
    uint32_t site = 0;
  };

  std::vector<Site> sites_;
  std::vector<uint8_t> is_strong_;  // of each site; shadow memory asks for it at each access
  // Of the last instructions: lines are those of one instruction each, and live as long as the world.
  struct LastAccess {
    const SourceLine* line = nullptr;
    const char* opcode = nullptr;
    uint64_t kind = 0;
    uint32_t site = 0;
  };
  static constexpr size_t kLastAccesses = 1024;

  std::vector<LastAccess> last_accesses_;
  LastRange last_range_;  // matrix products read tile by tile
  std::unordered_multimap<uint64_t, uint32_t> numbers_;
};

inline Scope effective_scope(Order order, Scope scope) {
  if (order == Order::kVolatile) return Scope::kSys;  // "volatile operations are relaxed with system scope", PTX ISA 8.3
  return order == Order::kWeak ? Scope::kNone : scope == Scope::kNone ? Scope::kGpu : scope;
}
inline bool acquires(Order order) {
  return order == Order::kAcquire || order == Order::kAcquireRelease || order == Order::kSequential;
}
inline bool releases(Order order) {
  return order == Order::kRelease || order == Order::kAcquireRelease || order == Order::kSequential;
}

// Host code: its loads and stores are strong, whatever the host's compiler knows of them, and of a size that is not known.
inline bool is_host_code(const Site& site) { return site.proxy == Proxy::kHost && site.is_strong; }

// A strong load that waits for no value: no flag, but a volatile or relaxed load of what a flag should announce.
inline bool reads_data(const Site& site) {
  return site.is_strong && site.operation == Operation::kRead && !site.decides && (!acquires(site.order) || is_host_code(site));
}
// A plain store, and a strong load that may wait for it.
inline bool polls(const Site& plain, const Site& strong) {
  return !plain.is_strong && plain.operation == Operation::kWrite && strong.operation == Operation::kRead && !reads_data(strong);
}

}  // namespace pkb::emulator::detector
