#include "detector_flags.h"

#include <algorithm>

namespace pkb::emulator::detector {

namespace {

constexpr uint64_t kPage = 4096;

constexpr size_t kMostAlone = 32;  // stores that a load looks at one by one

const Past& part_of_fence(const Release& release, Scope scope) {
  return release.fences[size_t(index_of(scope))].past;
}

}  // namespace

void Flags::learn(WarpState& warp, uint32_t lanes, const ClockRef& base, const ClockRef& proxied_global,
                  const ClockRef& proxied_shared) {
  warp.past.change(lanes, warp.all_lanes, [&](Past& past) { past.base = clocks_.join(past.base, base); });
  const bool has_news = [&] {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const Fences& fences = warp.fences.at(__builtin_ctz(rest));
      if (!(clocks_.join(fences.proxied_global, proxied_global) == fences.proxied_global)) return true;
      if (!(clocks_.join(fences.proxied_shared, proxied_shared) == fences.proxied_shared)) return true;
      if (warp.fences.is_uniform()) return false;
    }
    return false;
  }();
  if (!has_news) return;
  warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
    fences.proxied_global = clocks_.join(fences.proxied_global, proxied_global);
    fences.proxied_shared = clocks_.join(fences.proxied_shared, proxied_shared);
  });
}

bool Flags::has_deliveries(const ClockRef& clock) {
  return clock && clock->has_deliveries();
}

ClockRef Flags::delivered(const ClockRef& clock) {
  if (!has_deliveries(clock)) return clock;
  std::vector<Entry> entries = clock->of_kind(AgentKind::kDelivery);
  for (Entry& entry : entries) entry.key = key_of(AgentKind::kChannel, index_of(entry.key));
  return clocks_.with(clock, entries.data(), int(entries.size()));
}

// ---- stores ----

std::vector<std::shared_ptr<const Release>> Flags::publish(WarpState& warp, uint32_t lanes, const Site& site,
                                                           uint32_t site_number) {
  const bool is_release = releases(site.order);
  const Time time = clocks_.tick();  // of relaxed stores too, so that a message can tell what came before the store
  const bool is_uniform = warp.past.is_uniform() && warp.fences.is_uniform() && warp.signalling.empty();
  std::vector<std::shared_ptr<const Release>> all(kLanes);
  std::shared_ptr<const Release> shared;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (!shared || !is_uniform) {
      auto release = std::make_shared<Release>();
      const Fences& fences = warp.fences.at(lane);
      *release = Release{warp.key,          lanes,           time,
                         site_number,       is_release,      effective_scope(site.order, site.scope),
                         warp.past.at(lane), fences.released, fences.proxied_global,
                         fences.proxied_shared, fences.sequential, fences.sequential_released, warp.initial, {}};
      for (const Signalling& signalling : warp.signalling) {
        if (signalling.lanes >> lane & 1) release->delivered = signalling.delivered;
      }
      shared = std::move(release);
    }
    all[size_t(lane)] = shared;
  }
  warp.epoch = clocks_.now();
  return all;
}

void Flags::store(const std::shared_ptr<const Release>& release, int lane, uint64_t address, bool is_atomic) {
  Word& word = pages_[address / kPage][uint16_t(address % kPage)];
  if (word.crowd) {
    if (is_atomic) return join_crowd(*word.crowd, {release, lane});
    word.published = word.crowd->publications->all();
    word.crowd.reset();
  }
  const Key block = agents_.block_index_of(release->warp);
  // A plain store ends what other threads had released; its own earlier releases go on (second release pattern).
  // An atomic leads on, and makes superfluous what is in its thread's past already.
  std::erase_if(word.published, [&](const Published& old) {
    const bool is_own = old.release->warp == release->warp && old.lane == lane;
    if (!is_atomic) return !(is_own && old.release->is_release && !release->is_release);
    if (is_own) return !old.release->is_release || (release->is_release && release->scope >= old.release->scope);
    const Record record{old.release->warp, old.release->time, old.release->site, 1u << old.lane};
    if (release->scope < old.release->scope) return false;
    const Past& past = release->is_release ? release->past : part_of_fence(*release, old.release->scope);
    return agents_.in_past(past, release->warp, block, true, record);
  });
  word.published.push_back({release, lane});
  if (word.published.size() <= kMostAlone) return;
  word.crowd = std::make_unique<Crowd>();
  for (const Published& published : word.published) join_crowd(*word.crowd, published);
  word.published = {};
}

void Flags::forget(uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  for (uint64_t page = address / kPage; page <= (end - 1) / kPage; ++page) {
    const auto found = pages_.find(page);
    if (found == pages_.end()) continue;
    const uint64_t low = std::max(address, page * kPage), high = std::min(end, (page + 1) * kPage);
    if (high - low == kPage) {
      pages_.erase(found);
    } else if (high - low <= found->second.size()) {
      for (uint64_t at = low; at < high; ++at) found->second.erase(uint16_t(at % kPage));
    } else {
      std::erase_if(found->second, [&](const auto& word) {
        return page * kPage + word.first >= low && page * kPage + word.first < high;
      });
    }
  }
}

void Flags::move(uint64_t from, uint64_t to) {
  forget(to, 1);
  const auto page = pages_.find(from / kPage);
  if (page == pages_.end()) return;
  auto word = page->second.extract(uint16_t(from % kPage));
  if (word) pages_[to / kPage][uint16_t(to % kPage)] = std::move(word.mapped());
}

const Release* Flags::carried(uint64_t address, int* lane) const {
  const auto page = pages_.find(address / kPage);
  if (page == pages_.end()) return nullptr;
  const auto word = page->second.find(uint16_t(address % kPage));
  if (word == page->second.end()) return nullptr;
  if (!word->second.crowd && word->second.published.empty()) return nullptr;
  const Published& last = word->second.crowd ? word->second.crowd->publications->last() : word->second.published.back();
  *lane = last.lane;
  return last.release.get();
}

// ---- loads ----

// What of a release reaches a thread at some distance: all, or what came before its last fence of that scope.
Flags::Part Flags::part_for(const Release& release, Scope distance) {
  if (release.is_release && release.scope >= distance) return {&release.past, release.time};
  const FencePoint& point = release.fences[size_t(index_of(distance))];
  return {&point.past, point.time};
}

ClockRef Flags::clock_of(const Release& release, const Part& part, int lane) {
  const Entry entries[] = {{key_of(AgentKind::kBlock, agents_.block_index_of(release.warp)), part.past->block_time},
                           {release.warp, part.past->warp_time},
                           {lane_key(release.warp, lane), part.time}};
  return clocks_.with(part.past->base, entries, 3);
}

Brought Flags::brought(const Published& published, const Part& part, Scope distance) {
  const Release& release = *published.release;
  Brought all;
  const ClockRef own = clock_of(release, part, published.lane);
  all.clock = delivered(clocks_.join(own, release.delivered));
  all.proxied_global = release.proxied_global;
  all.proxied_shared = release.proxied_shared;
  all.initial = release.initial;
  all.led_on = led_on(published, part, distance);
  // One clock for both, where one fence is both.
  const FencePoint& fence = release.sequential.own[size_t(index_of(distance))];
  const bool is_alike = !release.sequential.before[size_t(index_of(distance))] && fence.time == part.time && fence.past == *part.past;
  all.sequential = is_alike ? own : sequential_before(published, distance);
  return all;
}

void Flags::load(WarpState& warp, uint32_t lanes, uint64_t address, const Site& site, uint32_t site_number) {
  const auto page = pages_.find(address / kPage);
  if (page == pages_.end()) return;
  const auto word = page->second.find(uint16_t(address % kPage));
  if (word == page->second.end()) return;
  if (word->second.crowd) observe(warp, lanes, *word->second.crowd, address, site, site_number);
  for (const Published& published : word->second.published) observe(warp, lanes, published, address, site, site_number);
  warp.fences.unite(warp.all_lanes);  // once for all: counters have had many stores
}

uint32_t Flags::news_of(const Published& published, const Part& part, Key warp, const Past& past, uint32_t lanes) const {
  const Release& release = *published.release;
  if (release.warp == warp) lanes &= ~(1u << published.lane);
  if (release.delivered || has_deliveries(part.past->base)) return lanes;  // what they know of the thread says nothing of its puts
  const Record record{release.warp, release.time, release.site, 1u << published.lane};
  return agents_.in_past(past, warp, agents_.block_index_of(warp), true, record) ? 0 : lanes;
}

MissingEdge Flags::missing_at(const Release& release, const Part& part, Scope distance, Order order, Scope scope) {
  if (release.scope < distance || effective_scope(order, scope) < distance) return MissingEdge::kScope;
  if (part.past != &release.past) {
    const bool has_narrower = release.fences[0].time > part.time;
    return has_narrower || release.is_release ? MissingEdge::kFenceScope : MissingEdge::kRelease;
  }
  return acquires(order) ? MissingEdge::kNone : MissingEdge::kAcquire;
}

void Flags::take(WarpState& warp, uint32_t lanes, const Brought& brought, Scope distance, bool acquired) {
  const auto d = size_t(index_of(distance));
  if (lanes & warp.boundary) learn(warp, lanes & warp.boundary, brought.initial, brought.initial, brought.initial);
  if (acquired) {
    learn(warp, lanes, brought.clock, brought.proxied_global, brought.proxied_shared);
  } else {
    warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
      fences.read[d] = clocks_.join(fences.read[d], brought.clock);
      fences.proxied_global = clocks_.join(fences.proxied_global, brought.proxied_global);
      fences.proxied_shared = clocks_.join(fences.proxied_shared, brought.proxied_shared);
    });
  }
  if (brought.led_on) {  // an edge from a store to a load leads on from the fences before it, as a barrier does
    warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
      ClockRef& led = acquired ? fences.sequential.before[size_t(index_of(Scope::kSys))] : fences.sequential_read[d];
      led = clocks_.join(led, brought.led_on);
    });
  }
  observe_sequential(warp, lanes, brought.sequential, distance);
}

void Flags::observe(WarpState& warp, uint32_t lanes, const Published& published, uint64_t address, const Site& site,
                    uint32_t site_number) {
  const Scope distance = agents_.distance(published.release->warp, warp.key);
  const Part part = part_for(*published.release, distance);
  uint32_t news = 0;
  if (warp.past.is_uniform()) {
    news = news_of(published, part, warp.key, warp.past.at(0), lanes);
  } else {
    each_lane(lanes, [&](int lane) { news |= news_of(published, part, warp.key, warp.past.at(lane), 1u << lane); });
  }
  if (!news) return;
  const MissingEdge reason = missing_at(*published.release, part, distance, site.order, site.scope);
  if (reason != MissingEdge::kScope) take(warp, news, brought(published, part, distance), distance, acquires(site.order));
  if (reason == MissingEdge::kNone) return;
  FailedLoad failed;
  failed.edge = {published.release, published.lane, address, warp.key, news, warp.epoch, site_number, reason};
  fail(std::move(failed));
}

void Flags::observe_plain(const Record& store, const Accessor& who, const Record& load, uint64_t address,
                          const WarpState* writer, WarpState* reader) {
  if (kind_of(store.who) != AgentKind::kWarp || kind_of(who.who) != AgentKind::kWarp) return;
  auto release = std::make_shared<Release>();
  release->warp = store.who;
  release->lanes = store.lanes;
  release->time = store.time;
  release->site = store.site;
  const int lane = __builtin_ctz(store.lanes);
  if (writer) {
    release->past = writer->past.at(lane);
    // Two fence.sc around the store and the load have one possible order here, too. Only what the writer has executed
    // before the store counts.
    const auto& own = writer->fences.at(lane).sequential.own;
    for (size_t scope = 0; scope < own.size(); ++scope) {
      if (own[scope].time <= store.time) release->sequential.own[scope] = own[scope];
    }
    if (reader) {
      const Scope distance = agents_.distance(store.who, who.who);
      observe_sequential(*reader, who.lanes, sequential_before({release, lane}, distance), distance);
      const Fences& fences = writer->fences.at(lane);
      reader->fences.change(who.lanes, reader->all_lanes, [&](Fences& of) {
        of.proxied_global = clocks_.join(of.proxied_global, fences.proxied_global);
        of.proxied_shared = clocks_.join(of.proxied_shared, fences.proxied_shared);
      });
      reader->fences.unite(reader->all_lanes);
    }
  }
  FailedLoad failed;
  failed.edge = {std::move(release), lane, address, who.who, who.lanes, load.time, load.site, MissingEdge::kWeakFlag};
  fail(std::move(failed));
}

// ---- fences ----

void Flags::fence(WarpState& warp, uint32_t lanes, Order order, Scope scope, uint32_t site_number) {
  const int highest = index_of(scope);
  if (acquires(order)) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const uint32_t group = warp.fences.is_uniform() && warp.past.is_uniform() ? lanes : 1u << lane;
      const Fences& fences = warp.fences.at(lane);
      ClockRef read;
      for (int d = 0; d <= highest; ++d) read = clocks_.join(read, fences.read[size_t(d)]);
      if (read) {
        warp.past.change(group, warp.all_lanes, [&](Past& past) { past.base = clocks_.join(past.base, read); });
      }
      if (group == lanes) break;
    }
    warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) {
      for (int d = 0; d <= highest; ++d) {
        ClockRef& before = fences.sequential.before[size_t(index_of(Scope::kSys))];
        before = clocks_.join(before, fences.sequential_read[size_t(d)]);
        fences.sequential_read[size_t(d)] = ClockRef();
      }
    });
  }
  if (order == Order::kSequential) acquire_sequential(warp, lanes, highest);
  const Time time = clocks_.tick();
  warp.epoch = clocks_.now();
  const bool is_uniform = warp.past.is_uniform();
  const auto change = [&](uint32_t group, Fences& fences, const Past& past) {
    for (int d = 0; d <= highest; ++d) {
      if (acquires(order)) fences.read[size_t(d)] = ClockRef();
      if (releases(order)) fences.released[size_t(d)] = FencePoint{past, time, site_number};
      if (order == Order::kSequential) fences.sequential.own[size_t(d)] = FencePoint{past, time, site_number};
    }
    if (!releases(order)) return;
    const ClockRef before = before_system_fences(warp, group, fences.sequential);
    for (int d = 0; d <= highest; ++d) fences.sequential_released[size_t(d)] = before;
  };
  if (is_uniform) {
    warp.fences.change(lanes, warp.all_lanes, [&](Fences& fences) { change(lanes, fences, warp.past.at(0)); });
  } else {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      warp.fences.change(1u << lane, warp.all_lanes,
                         [&](Fences& fences) { change(1u << lane, fences, warp.past.at(lane)); });
    }
  }
}

void Flags::proxy_fence(WarpState& warp, uint32_t lanes, ProxyFence fence) {
  const bool is_global = fence == ProxyFence::kAsync || fence == ProxyFence::kAsyncGlobal;
  const bool is_shared = fence == ProxyFence::kAsync || fence == ProxyFence::kAsyncShared;
  if (!is_global && !is_shared) return;
  const Time time = clocks_.tick();
  warp.epoch = clocks_.now();
  const Key block = key_of(AgentKind::kBlock, agents_.block_index_of(warp.key));
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const bool all = warp.past.is_uniform() && warp.fences.is_uniform();
    const uint32_t group = all ? lanes : 1u << lane;
    const Past& past = warp.past.at(lane);
    std::vector<Entry> entries = {{block, past.block_time}, {warp.key, past.warp_time}};
    if (group == warp.all_lanes) {
      entries[1].time = time;
    } else {
      for (uint32_t own = group; own; own &= own - 1) entries.push_back({lane_key(warp.key, __builtin_ctz(own)), time});
    }
    const ClockRef clock = clocks_.with(past.base, entries.data(), int(entries.size()));
    warp.fences.change(group, warp.all_lanes, [&](Fences& fences) {
      if (is_global) fences.proxied_global = clocks_.join(fences.proxied_global, clock);
      if (is_shared) fences.proxied_shared = clocks_.join(fences.proxied_shared, clock);
    });
    if (all) break;
  }
}

void Flags::mbarrier_init_fence(WarpState& warp, uint32_t lanes) {
  const Time time = clocks_.tick();
  warp.epoch = clocks_.now();
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const ClockRef before = clock_before(warp, 1u << lane, FencePoint{warp.past.at(lane), time, 0});
    warp.fences.change(1u << lane, warp.all_lanes, [&](Fences& fences) { fences.initialised = clocks_.join(fences.initialised, before); });
  }
}

void Flags::bring_releases(const WarpState& warp, uint32_t lanes, Meeting& meeting) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const uint32_t group = warp.fences.is_uniform() ? lanes : 1u << lane;
    const Fences& fences = warp.fences.at(lane);
    meeting.base = clocks_.join(meeting.base, clock_before(warp, group, fences.released[size_t(index_of(Scope::kCluster))]));
    meeting.initialised = clocks_.join(meeting.initialised, fences.initialised);
    if (group == lanes) break;
  }
}

// ---- edges that are missing ----

void Flags::fail(FailedLoad load) {
  load.edge.observed = clocks_.now();
  if (!failed_.empty()) {  // polls
    const FailedLoad& last = failed_[(next_failed_ + failed_.size() - 1) % failed_.size()];
    FailedEdge again = last.edge;
    again.observed = load.edge.observed;
    again.reason = load.edge.reason;
    again.address = load.edge.address;
    if (again == load.edge && last.crowd == load.crowd && last.end == load.end) return;
  }
  if (failed_.size() < kFailed) {
    failed_.push_back(std::move(load));
  } else {
    failed_[next_failed_] = std::move(load);
    next_failed_ = (next_failed_ + 1) % kFailed;
  }
}

}  // namespace pkb::emulator::detector
