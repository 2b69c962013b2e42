#include "detector_flags.h"

#include <algorithm>

namespace pkb::emulator::detector {

namespace {

constexpr uint64_t kPage = 4096;

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
  return clock && !clock->entries.empty() && kind_of(clock->entries.back().key) == AgentKind::kDelivery;
}

ClockRef Flags::delivered(const ClockRef& clock) {
  if (!has_deliveries(clock)) return clock;
  std::vector<Entry> entries;
  for (auto at = clock->entries.rbegin(); at != clock->entries.rend() && kind_of(at->key) == AgentKind::kDelivery; ++at) {
    entries.push_back({key_of(AgentKind::kChannel, index_of(at->key)), at->time});
  }
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
  // Counters that nobody ever resets or releases.
  constexpr size_t kMost = 4096;
  if (word.published.size() >= kMost) word.published.erase(word.published.begin());
  word.published.push_back({release, lane});
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

const Release* Flags::carried(uint64_t address, int* lane) const {
  const auto page = pages_.find(address / kPage);
  if (page == pages_.end()) return nullptr;
  const auto word = page->second.find(uint16_t(address % kPage));
  if (word == page->second.end() || word->second.published.empty()) return nullptr;
  *lane = word->second.published.back().lane;
  return word->second.published.back().release.get();
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

void Flags::load(WarpState& warp, uint32_t lanes, uint64_t address, const Site& site, uint32_t site_number) {
  const auto page = pages_.find(address / kPage);
  if (page == pages_.end()) return;
  const auto word = page->second.find(uint16_t(address % kPage));
  if (word == page->second.end()) return;
  for (const Published& published : word->second.published) observe(warp, lanes, published, address, site, site_number);
  warp.fences.unite(warp.all_lanes);  // once for all: counters have had many stores
}

void Flags::observe(WarpState& warp, uint32_t lanes, const Published& published, uint64_t address, const Site& site,
                    uint32_t site_number) {
  const Release& release = *published.release;
  const Record record{release.warp, release.time, release.site, 1u << published.lane};
  const uint32_t block = agents_.block_index_of(warp.key);
  const Scope distance = agents_.distance(release.warp, warp.key);
  const Part part = part_for(release, distance);
  uint32_t news = 0;
  if (release.delivered || has_deliveries(part.past->base)) {
    news = lanes;  // what they know of the store's thread says nothing of its puts
  } else if (warp.past.is_uniform()) {
    if (!agents_.in_past(warp.past.at(0), warp.key, block, true, record)) news = lanes;
  } else {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (!agents_.in_past(warp.past.at(lane), warp.key, block, true, record)) news |= 1u << lane;
    }
  }
  if (release.warp == warp.key) news &= ~(1u << published.lane);
  if (!news) return;
  MissingEdge reason = MissingEdge::kNone;
  if (release.scope < distance || effective_scope(site.order, site.scope) < distance) {
    reason = MissingEdge::kScope;
  } else {
    const ClockRef clock = delivered(clocks_.join(clock_of(release, part, published.lane), release.delivered));
    if (news & warp.boundary) learn(warp, news & warp.boundary, release.initial, release.initial, release.initial);
    if (acquires(site.order)) {
      learn(warp, news, clock, release.proxied_global, release.proxied_shared);
    } else {
      warp.fences.change(news, warp.all_lanes, [&](Fences& fences) {
        ClockRef& read = fences.read[size_t(index_of(distance))];
        read = clocks_.join(read, clock);
        fences.proxied_global = clocks_.join(fences.proxied_global, release.proxied_global);
        fences.proxied_shared = clocks_.join(fences.proxied_shared, release.proxied_shared);
      });
    }
    lead_on(warp, news, published, part, distance, acquires(site.order));
    observe_sequential(warp, news, published, distance);
    if (part.past != &release.past) {
      const bool has_narrower = release.fences[0].time > part.time;
      reason = has_narrower || release.is_release ? MissingEdge::kFenceScope : MissingEdge::kRelease;
    } else if (!acquires(site.order)) {
      reason = MissingEdge::kAcquire;
    }
  }
  if (reason != MissingEdge::kNone) {
    fail({published.release, published.lane, address, warp.key, news, warp.epoch, site_number, reason});
  }
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
      observe_sequential(*reader, who.lanes, {release, lane}, agents_.distance(store.who, who.who));
      const Fences& fences = writer->fences.at(lane);
      reader->fences.change(who.lanes, reader->all_lanes, [&](Fences& of) {
        of.proxied_global = clocks_.join(of.proxied_global, fences.proxied_global);
        of.proxied_shared = clocks_.join(of.proxied_shared, fences.proxied_shared);
      });
      reader->fences.unite(reader->all_lanes);
    }
  }
  fail({std::move(release), lane, address, who.who, who.lanes, load.time, load.site, MissingEdge::kWeakFlag});
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

void Flags::fail(FailedEdge edge) {
  edge.observed = clocks_.now();
  const auto is_same = [&](const FailedEdge& old) {  // polls
    return old.from == edge.from && old.from_lane == edge.from_lane && old.to_warp == edge.to_warp &&
           old.to_site == edge.to_site && old.to_lanes == edge.to_lanes && old.to_time == edge.to_time;
  };
  if (!failed_.empty() && is_same(failed_[(next_failed_ + failed_.size() - 1) % failed_.size()])) return;
  if (failed_.size() < kFailed) {
    failed_.push_back(edge);
  } else {
    failed_[next_failed_] = edge;
    next_failed_ = (next_failed_ + 1) % kFailed;
  }
}

std::vector<const FailedEdge*> Flags::failed() const {
  std::vector<const FailedEdge*> all;
  all.reserve(failed_.size());
  for (size_t i = 0; i < failed_.size(); ++i) all.push_back(&failed_[(next_failed_ + i) % failed_.size()]);
  return all;
}

}  // namespace pkb::emulator::detector
