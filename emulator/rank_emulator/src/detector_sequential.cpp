// fence.sc on both sides of a word in memory, which threads of a block may execute for each other: see detector_flags.h.
#include "detector_flags.h"

namespace pkb::emulator::detector {

// What comes before a fence that some lanes have executed together.
ClockRef Flags::clock_before(const WarpState& warp, uint32_t lanes, const FencePoint& fence) {
  std::vector<Entry> entries = {{key_of(AgentKind::kBlock, agents_.block_index_of(warp.key)), fence.past.block_time},
                                {warp.key, fence.past.warp_time}};
  if (lanes == warp.all_lanes) {
    entries[1].time = fence.time;
  } else {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      entries.push_back({lane_key(warp.key, __builtin_ctz(rest)), fence.time});
    }
  }
  return clocks_.with(fence.past.base, entries.data(), int(entries.size()));
}

void Flags::bring_fences(const WarpState& warp, uint32_t lanes, Meeting& meeting) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const uint32_t group = warp.fences.is_uniform() ? lanes : 1u << lane;
    const SequentialFences& fences = warp.fences.at(lane).sequential;
    ClockRef before_own;
    for (size_t d = 0; d < kScopes; ++d) {
      meeting.sequential[d] = clocks_.join(meeting.sequential[d], fences.before[d]);
      meeting.observed[d] = clocks_.join(meeting.observed[d], fences.observed[d]);
      if (!fences.own[d].time) continue;
      if (d == 0 || !(fences.own[d] == fences.own[d - 1])) before_own = clock_before(warp, group, fences.own[d]);
      meeting.sequential[d] = clocks_.join(meeting.sequential[d], before_own);
    }
    if (group == lanes) break;
  }
}

void Flags::take_fences(WarpState& warp, uint32_t lanes, const Meeting& meeting) {
  const auto is_empty = [](const ScopedClocks& clocks) {
    for (const ClockRef& clock : clocks) {
      if (clock) return false;
    }
    return true;
  };
  if (is_empty(meeting.sequential) && is_empty(meeting.observed)) return;
  warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
    fences.sequential = SequentialFences{{}, meeting.sequential, meeting.observed};
  });
  warp.fences.unite(warp.all_lanes);
}

ClockRef Flags::before_system_fences(const WarpState& warp, uint32_t lanes, const SequentialFences& fences) {
  const FencePoint& own = fences.own[size_t(index_of(Scope::kSys))];
  const ClockRef& before = fences.before[size_t(index_of(Scope::kSys))];
  return own.time ? clocks_.join(before, clock_before(warp, lanes, own)) : before;
}

// What came before fences.sc of system scope before a store, as far as it brings what came before it.
ClockRef Flags::led_on(const Published& published, const Part& part, Scope distance) {
  const Release& release = *published.release;
  if (part.past != &release.past) return release.sequential_released[size_t(index_of(distance))];
  const auto system = size_t(index_of(Scope::kSys));
  const FencePoint& own = release.sequential.own[system];
  const ClockRef& before = release.sequential.before[system];
  return own.time ? clocks_.join(before, clock_of(release, {&own.past, own.time}, published.lane)) : before;
}

ClockRef Flags::sequential_before(const Published& published, Scope distance) {
  const auto d = size_t(index_of(distance));
  const SequentialFences& of_store = published.release->sequential;
  const FencePoint& own = of_store.own[d];
  if (!own.time) return of_store.before[d];
  return clocks_.join(of_store.before[d], clock_of(*published.release, {&own.past, own.time}, published.lane));
}

void Flags::observe_sequential(WarpState& warp, uint32_t lanes, const ClockRef& before, Scope distance) {
  if (!before) return;
  const auto d = size_t(index_of(distance));
  warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
    fences.sequential.observed[d] = clocks_.join(fences.sequential.observed[d], before);
  });
  warp.fences.unite(warp.all_lanes);
}

void Flags::acquire_sequential(WarpState& warp, uint32_t lanes, int highest) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const uint32_t group = warp.fences.is_uniform() && warp.past.is_uniform() ? lanes : 1u << lane;
    const ScopedClocks& observed = warp.fences.at(lane).sequential.observed;
    ClockRef before;
    for (int d = 0; d <= highest; ++d) before = clocks_.join(before, observed[size_t(d)]);
    if (before) {
      warp.past.change(group, warp.all_lanes, [&](Past& past) { past.base = clocks_.join(past.base, before); });
      warp.fences.change(group, warp.all_lanes, [&](Fences& fences) {
        for (int d = 0; d <= highest; ++d) fences.sequential.observed[size_t(d)] = ClockRef();
      });
    }
    if (group == lanes) break;
  }
}

}  // namespace pkb::emulator::detector
