#include "detector_barriers.h"

#include <algorithm>
#include <utility>

namespace pkb::emulator::detector {

namespace {

int count(uint32_t lanes) { return __builtin_popcount(lanes); }

}  // namespace

Meeting& Barriers::meeting_of(std::array<Meeting, 2>& meetings, uint64_t generation) {
  Meeting& meeting = meetings[generation % 2];
  if (meeting.generation != generation) {
    meeting = Meeting();
    meeting.generation = generation;
  }
  return meeting;
}

// The past of some lanes, without their own accesses: entries for those are added, up to the present.
ClockRef Barriers::clock_of_arrival(WarpState& warp, uint32_t lanes, std::vector<Entry>& entries) {
  ClockRef base;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const Past& past = warp.past.at(__builtin_ctz(rest));
    base = clocks_.join(base, past.base);
    if (past.warp_time) entries.push_back({warp.key, past.warp_time});
    if (warp.past.is_uniform()) break;
  }
  const Time time = clocks_.tick();
  warp.epoch = clocks_.now();
  if (lanes == warp.all_lanes) {
    entries.push_back({warp.key, time});
  } else {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      entries.push_back({lane_key(warp.key, __builtin_ctz(rest)), time});
    }
  }
  return base;
}

void Barriers::join_arrival(Meeting& meeting, WarpState& warp, uint32_t lanes, bool waits, bool releases) {
  meeting.lanes += uint32_t(count(lanes));
  meeting.all_wait = meeting.all_wait && waits;
  if (!releases) return;
  flags_.bring_fences(warp, lanes, meeting);
  meeting.base = clocks_.join(meeting.base, clock_of_arrival(warp, lanes, meeting.entries));
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    meeting.block_time = std::max(meeting.block_time, warp.past.at(lane).block_time);
    meeting.proxied_global = clocks_.join(meeting.proxied_global, warp.fences.at(lane).proxied_global);
    meeting.proxied_shared = clocks_.join(meeting.proxied_shared, warp.fences.at(lane).proxied_shared);
    if (warp.past.is_uniform() && warp.fences.is_uniform()) break;
  }
}

// ---- warps ----

void Barriers::warp_barrier(const Warp& of) {
  WarpState& warp = kernels_.warp(of);
  Meeting meeting;
  join_arrival(meeting, warp, of.lanes, true, true);
  const bool is_whole = of.lanes == warp.all_lanes;
  const Time time = clocks_.now() - 1;
  if (!is_whole) meeting.base = clocks_.with(meeting.base, meeting.entries.data(), int(meeting.entries.size()));
  Time warp_time = 0;
  for (uint32_t rest = of.lanes; rest; rest &= rest - 1) {
    warp_time = std::max(warp_time, warp.past.at(__builtin_ctz(rest)).warp_time);
  }
  if (is_whole) warp_time = time;
  warp.past.change(of.lanes, warp.all_lanes, [&](Past& past) { past = {meeting.base, meeting.block_time, warp_time}; });
  warp.past.unite(warp.all_lanes);
  flags_.learn(warp, of.lanes, meeting.base, meeting.proxied_global, meeting.proxied_shared);
  flags_.take_fences(warp, of.lanes, meeting);
}

void Barriers::match(const Warp& of) {
  constexpr size_t kMost = 8;
  WarpState& warp = kernels_.warp(of);
  if (warp.matches.size() == kMost) warp.matches.erase(warp.matches.begin());
  warp.matches.push_back({clocks_.tick(), of.lanes});
  warp.epoch = clocks_.now();
}

// ---- blocks ----

void Barriers::arrive(const Warp& of, uint32_t barrier, uint64_t generation, bool waits) {
  BlockState& block = kernels_.block(*of.launch, of.block);
  join_arrival(meeting_of(block.barriers[barrier], generation), block.warps.at(of.warp), of.lanes, waits, true);
}

void Barriers::leave(const Warp& of, uint32_t barrier, uint64_t generation) {
  BlockState& block = kernels_.block(*of.launch, of.block);
  WarpState& warp = block.warps.at(of.warp);
  Meeting& meeting = meeting_of(block.barriers[barrier], generation);
  if (!meeting.is_closed) {
    meeting.is_closed = true;
    meeting.closed = clocks_.tick();
    // All threads of the block stood still: one time for all of them.
    if (meeting.all_wait && meeting.lanes >= block.threads) {
      meeting.block_time = meeting.closed;
    } else {
      meeting.base = clocks_.with(meeting.base, meeting.entries.data(), int(meeting.entries.size()));
    }
  }
  warp.epoch = clocks_.now();
  const bool is_whole = of.lanes == warp.all_lanes && meeting.all_wait;
  warp.past.change(of.lanes, warp.all_lanes, [&](Past& past) {
    past.base = meeting.base;  // has all that arrived with
    past.block_time = meeting.block_time;
    if (is_whole) past.warp_time = std::max(past.warp_time, meeting.closed);
  });
  warp.past.unite(warp.all_lanes);
  flags_.learn(warp, of.lanes, meeting.base, meeting.proxied_global, meeting.proxied_shared);
  flags_.take_fences(warp, of.lanes, meeting);
}

void Barriers::exit(const Warp& of) { kernels_.block(*of.launch, of.block).exited += uint32_t(count(of.lanes)); }

// ---- clusters ----

void Barriers::cluster_arrive(const Warp& of, bool releases, uint64_t generation) {
  GridState& grid = kernels_.grid(*of.launch);
  Meeting& meeting = meeting_of(grid.clusters[of.cluster], generation);
  WarpState& warp = kernels_.warp(of);
  join_arrival(meeting, warp, of.lanes, false, releases);
  if (!releases) return flags_.bring_releases(warp, of.lanes, meeting);
  const Time block_time = warp.past.at(__builtin_ctz(of.lanes)).block_time;
  meeting.entries.push_back({key_of(AgentKind::kBlock, agents_.block_index_of(warp.key)), block_time});
}

void Barriers::cluster_leave(const Warp& of, bool acquires, uint64_t generation) {
  GridState& grid = kernels_.grid(*of.launch);
  Meeting& meeting = meeting_of(grid.clusters[of.cluster], generation);
  if (!meeting.is_closed) {
    meeting.is_closed = true;
    meeting.base = clocks_.with(meeting.base, meeting.entries.data(), int(meeting.entries.size()));
  }
  if (!acquires) return;
  WarpState& warp = kernels_.warp(of);
  flags_.learn(warp, of.lanes, meeting.base, meeting.proxied_global, meeting.proxied_shared);
  if (!meeting.initialised) return;
  warp.fences.change(of.lanes, warp.all_lanes, [&](Fences& fences) {
    fences.initialised = clocks_.join(fences.initialised, meeting.initialised);
  });
  warp.fences.unite(warp.all_lanes);
}

// ---- mbarriers ----

// What a clock says of asynchronous operations.
ClockRef Barriers::channels_of(const ClockRef& clock) {
  if (!clock) return clock;
  const std::vector<Entry> channels = clock->of_kind(AgentKind::kChannel);
  return clocks_.with(ClockRef(), channels.data(), int(channels.size()));
}

void Barriers::arrive_mbarrier(const Warp& of, uint64_t address, const Site& site, uint32_t site_number) {
  WarpState& warp = kernels_.warp(of);
  const auto published = flags_.publish(warp, of.lanes, site, site_number);
  each_lane(of.lanes, [&](int lane) {
    flags_.store(published[size_t(lane)], lane, address + kUnderWay, true);
    if (!releases(site.order)) return;
    ClockRef& completed = mbarriers_[address].completed;
    completed = clocks_.join(completed, channels_of(warp.past.at(lane).base));
  });
}

void Barriers::expect(uint64_t address, uint32_t bytes, const Record& by) {
  if (bytes) mbarriers_[address].expecting = by;
}

void Barriers::complete_operation(uint64_t address, Key channel, Time time) {
  mbarriers_[address].entries.push_back({channel, time});
}

Record Barriers::complete(uint64_t address) {
  Mbarrier& mbarrier = mbarriers_[address];
  mbarrier.done = clocks_.with(mbarrier.completed, mbarrier.entries.data(), int(mbarrier.entries.size()));
  mbarrier.completed = ClockRef();
  mbarrier.entries.clear();
  flags_.move(address + kUnderWay, address);
  return std::exchange(mbarrier.unwaited, std::exchange(mbarrier.expecting, Record()));
}

void Barriers::wait(const Warp& of, uint64_t address, const Site& site, uint32_t site_number) {
  Mbarrier& mbarrier = mbarriers_[address];
  mbarrier.unwaited = Record();
  WarpState& warp = kernels_.warp(of);
  flags_.load(warp, of.lanes, address, site, site_number);
  if (acquires(site.order)) flags_.learn(warp, of.lanes, mbarrier.done, ClockRef(), ClockRef());
}

std::vector<Barriers::Leak> Barriers::end(uint64_t address, uint64_t bytes) {
  std::vector<Leak> leaks;
  for (auto at = mbarriers_.begin(); at != mbarriers_.end();) {
    if (at->first < address || at->first >= address + bytes) {
      ++at;
      continue;
    }
    const Mbarrier& mbarrier = at->second;
    if (mbarrier.expecting.present()) leaks.push_back({at->first, mbarrier.expecting, true});
    else if (mbarrier.unwaited.present()) leaks.push_back({at->first, mbarrier.unwaited, false});
    at = mbarriers_.erase(at);
  }
  std::sort(leaks.begin(), leaks.end(), [](const Leak& a, const Leak& b) { return a.address < b.address; });
  return leaks;
}

}  // namespace pkb::emulator::detector
