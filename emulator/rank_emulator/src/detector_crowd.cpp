#include "detector_crowd.h"

#include <utility>

#include "detector_flags.h"

namespace pkb::emulator::detector {

namespace {

constexpr Scope kDistances[] = {Scope::kCta, Scope::kCluster, Scope::kGpu, Scope::kSys};

}  // namespace

void Brought::join(Clocks& clocks, const Brought& other) {
  const bool is_alike = sequential == clock && other.sequential == other.clock;
  clock = clocks.join(clock, other.clock);
  proxied_global = clocks.join(proxied_global, other.proxied_global);
  proxied_shared = clocks.join(proxied_shared, other.proxied_shared);
  initial = clocks.join(initial, other.initial);
  led_on = clocks.join(led_on, other.led_on);
  sequential = is_alike ? clock : clocks.join(sequential, other.sequential);
}

void Publications::add(const Published& published) {
  if (kept.size() == kMost) {
    kept.pop_front();
    ++first;
  }
  kept.push_back(published);
}

uint64_t Crowd::group_at(const Agents& agents, Scope distance, Key warp) {
  switch (distance) {
    case Scope::kCta: return agents.block_index_of(warp);
    case Scope::kCluster: return uint64_t(agents.block_of(warp).grid) << 32 | agents.block_of(warp).cluster;
    case Scope::kGpu: return uint64_t(agents.rank_of(warp));
    default: return 0;
  }
}

// What a store brings far it brings near, too: so each store counts in all groups that it is in.
void Flags::join_crowd(Crowd& crowd, const Published& published) {
  const Release& release = *published.release;
  for (const Scope distance : kDistances) {
    Crowd::Group& group = crowd.groups[size_t(index_of(distance))][Crowd::group_at(agents_, distance, release.warp)];
    const Part part = part_for(release, distance);
    ++group.stores;
    group.fails |= release.scope < distance || part.past != &release.past;
    if (release.scope >= distance) group.brought.join(clocks_, brought(published, part, distance));
  }
  crowd.publications->add(published);
}

void Flags::observe(WarpState& warp, uint32_t lanes, const Crowd& crowd, uint64_t address, const Site& site,
                    uint32_t site_number) {
  FailedLoad load;
  load.edge = {nullptr, 0, address, warp.key, lanes, warp.epoch, site_number, MissingEdge::kNone};
  load.crowd = crowd.publications;
  load.end = crowd.publications->end();
  load.past = warp.past.at(__builtin_ctz(lanes));
  load.order = site.order;
  load.scope = site.scope;
  bool fails = !acquires(site.order);
  uint64_t nearer = 0;  // stores of the group before
  for (const Scope distance : kDistances) {
    const auto& groups = crowd.groups[size_t(index_of(distance))];
    const auto found = groups.find(Crowd::group_at(agents_, distance, warp.key));
    if (found == groups.end() || found->second.stores == nearer) continue;
    nearer = found->second.stores;
    const bool is_beyond = effective_scope(site.order, site.scope) < distance;
    fails |= found->second.fails || is_beyond;
    if (!is_beyond) take(warp, lanes, found->second.brought, distance, acquires(site.order));
  }
  if (fails) fail(std::move(load));
}

FailedEdge Flags::edge_of(const FailedLoad& load, const Published& published) const {
  FailedEdge edge = load.edge;
  const Release& release = *published.release;
  const Scope distance = agents_.distance(release.warp, edge.to_warp);
  const Part part = part_for(release, distance);
  edge.from = published.release;
  edge.from_lane = published.lane;
  edge.to_lanes = news_of(published, part, edge.to_warp, load.past, edge.to_lanes);
  edge.reason = edge.to_lanes ? missing_at(release, part, distance, load.order, load.scope) : MissingEdge::kNone;
  return edge;
}

}  // namespace pkb::emulator::detector
