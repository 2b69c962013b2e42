// Strong stores, strong loads and fences: the edges that words in memory make between threads.
//
// Release and acquire patterns as in PTX ISA 8.9 "Release and Acquire Patterns" (formalised by Lustig, Sahasrabuddhe and
// Giroux, ASPLOS 2019): a release, or a fence and then a strong store; an acquire, or a strong load and then a fence. They
// make an edge if the load observes the store, directly or through atomics, and each one's scope holds the other's thread.
// The beginning of a kernel counts as a fence of system scope, since all earlier work of its stream is visible by then.
// Two fence.sc order each other. Where the one comes before a strong store and the other after a load that observes it,
// each in its own thread or beyond a barrier of the block, or the first beyond flags and so a barrier of the grid, the
// order cannot be the other way round: the load would come before the store that it observes (PTX ISA 8.10, "Fence-SC"
// and "Causality"). What came before the first is then in the past of the second. Between fences without such a load, the
// order is an accident of the execution and makes no edge.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "detector_crowd.h"
#include "detector_state.h"
#include "findings.h"

namespace pkb::emulator::detector {

// A strong load that observed a strong store without taking over all that came before the store.
struct FailedEdge {
  std::shared_ptr<const Release> from;
  int from_lane = 0;
  uint64_t address = 0;
  Key to_warp = 0;
  uint32_t to_lanes = 0;
  Time to_time = 0;
  uint32_t to_site = 0;
  MissingEdge reason = MissingEdge::kNone;
  Time observed = 0;

  bool operator==(const FailedEdge& other) const = default;
};

class Flags {
 public:
  Flags(Agents& agents, Clocks& clocks) : agents_(agents), clocks_(clocks) {}

  // A strong load of some lanes, which all observe the words [address, address + bytes) of `element_bytes` each.
  void load(WarpState& warp, uint32_t lanes, uint64_t address, const Site& site, uint32_t site_number);
  // What one strong store instruction publishes: once for all lanes, where they have the same past.
  std::vector<std::shared_ptr<const Release>> publish(WarpState& warp, uint32_t lanes, const Site& site, uint32_t site_number);
  // One lane's store of a word. Atomics keep what the word carried.
  void store(const std::shared_ptr<const Release>& release, int lane, uint64_t address, bool is_atomic);
  // Words of a range are overwritten by plain stores, or their memory has gone.
  void forget(uint64_t address, uint64_t bytes);
  // What a word has carried another one carries from now on, and nothing else.
  void move(uint64_t from, uint64_t to);

  // A strong load or atomic has observed a plain store, of a warp whose state may be forgotten: no edge but that of two
  // fence.sc, though a flag all the same.
  void observe_plain(const Record& store, const Accessor& who, const Record& load, uint64_t address,
                     const WarpState* writer, WarpState* reader);

  void fence(WarpState& warp, uint32_t lanes, Order order, Scope scope, uint32_t site_number);
  void proxy_fence(WarpState& warp, uint32_t lanes, ProxyFence fence);
  void mbarrier_init_fence(WarpState& warp, uint32_t lanes);
  // What came before the last fences of cluster scope that release, and before those of `mbarrier_init_fence`: a relaxed
  // arrival at a barrier of the cluster brings them.
  void bring_releases(const WarpState& warp, uint32_t lanes, Meeting& meeting);

  // fence.sc: lanes that arrive at a barrier of their warp or block bring theirs; those that leave it take all.
  void bring_fences(const WarpState& warp, uint32_t lanes, Meeting& meeting);
  void take_fences(WarpState& warp, uint32_t lanes, const Meeting& meeting);

  // Joins what a release has published to the past of lanes.
  void learn(WarpState& warp, uint32_t lanes, const ClockRef& base, const ClockRef& proxied_global,
             const ClockRef& proxied_shared);

  // A clock, and all of channels that its deliveries lead to: what another PE learns with it by a flag.
  ClockRef delivered(const ClockRef& clock);
  static bool has_deliveries(const ClockRef& clock);

  // The store that a word carries; null if it was not a strong one.
  const Release* carried(uint64_t address, int* lane) const;

  // Calls visit(edge) for those observed since a time, the newest first, of loads for which is_reader(edge) holds: of loads of
  // crowded words it is asked before their edges are known.
  template <class IsReader, class Visit>
  void each_failed(Time since, const IsReader& is_reader, const Visit& visit) const {
    constexpr size_t kMostOfCrowds = 1 << 15;
    size_t left = kMostOfCrowds;
    for (size_t i = failed_.size(); i-- > 0;) {
      const FailedLoad& load = failed_[(next_failed_ + i) % failed_.size()];
      if (load.edge.observed < since || !is_reader(load.edge)) continue;
      if (!load.crowd) {
        visit(load.edge);
        continue;
      }
      for (uint64_t number = load.end; number > load.crowd->first && left; --left) {
        const FailedEdge edge = edge_of(load, load.crowd->at(--number));
        if (edge.reason != MissingEdge::kNone) visit(edge);
      }
    }
  }

 private:
  struct Word {
    std::vector<Published> published;  // the last store and, where atomics lead on from them, earlier ones
    std::unique_ptr<Crowd> crowd;      // these, where they are many: `published` is empty then
  };
  using WordPage = std::unordered_map<uint16_t, Word>;
  static constexpr size_t kFailed = 1 << 14;
  // A load that made no edge; of a crowded word one that may have made none from one of the stores before `end`.
  struct FailedLoad {
    FailedEdge edge;
    std::shared_ptr<const Publications> crowd;
    uint64_t end = 0;
    Past past;  // of the reader before
    Order order = Order::kWeak;
    Scope scope = Scope::kNone;
  };

  struct Part {
    const Past* past;
    Time time;
  };
  static Part part_for(const Release& release, Scope distance);
  ClockRef clock_of(const Release& release, const Part& part, int lane);
  // What a store brings to a strong load at a distance that both scopes hold.
  Brought brought(const Published& published, const Part& part, Scope distance);
  void take(WarpState& warp, uint32_t lanes, const Brought& brought, Scope distance, bool acquired);
  void observe(WarpState& warp, uint32_t lanes, const Published& published, uint64_t address, const Site& site,
               uint32_t site_number);
  void observe(WarpState& warp, uint32_t lanes, const Crowd& crowd, uint64_t address, const Site& site, uint32_t site_number);
  void join_crowd(Crowd& crowd, const Published& published);
  // Those of some lanes, which know the same, to whom a store tells what they do not know.
  uint32_t news_of(const Published& published, const Part& part, Key warp, const Past& past, uint32_t lanes) const;
  // What is missing at an edge; `scope` and `order` are those of the load.
  static MissingEdge missing_at(const Release& release, const Part& part, Scope distance, Order order, Scope scope);
  FailedEdge edge_of(const FailedLoad& load, const Published& published) const;
  void fail(FailedLoad load);
  ClockRef clock_before(const WarpState& warp, uint32_t lanes, const FencePoint& fence);
  // What came before fences.sc of system scope that happen before the lanes' next instruction.
  ClockRef before_system_fences(const WarpState& warp, uint32_t lanes, const SequentialFences& fences);
  ClockRef led_on(const Published& published, const Part& part, Scope distance);
  ClockRef sequential_before(const Published& published, Scope distance);
  void observe_sequential(WarpState& warp, uint32_t lanes, const ClockRef& before, Scope distance);
  void acquire_sequential(WarpState& warp, uint32_t lanes, int highest);

  Agents& agents_;
  Clocks& clocks_;
  std::unordered_map<uint64_t, WordPage> pages_;
  std::vector<FailedLoad> failed_;
  size_t next_failed_ = 0;
};

}  // namespace pkb::emulator::detector
