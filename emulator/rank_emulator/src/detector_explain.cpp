// What is missing between two accesses that race.
#include <algorithm>

#include "detector_races.h"

namespace pkb::emulator::detector {

namespace {

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

}  // namespace

void Races::found(const Record& earlier, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes) {
  if (!report_.is_new(FindingKind::kRace, earlier.site, access.site) && !report_.weak(FindingKind::kRace, earlier.site, access.site)) return;
  Record others = earlier;  // lanes that are not those of the access, if there are any
  if (others.who == access.who && others.lanes & ~access.lanes) others.lanes &= ~access.lanes;
  const Record* const unused = is_unused(others) ? &others : is_unused(access) ? &access : nullptr;
  const auto is_kept = [&](const Unused& kept) {
    return kept.first_site == earlier.site && kept.second_site == access.site && (unused->lanes & ~kept.load.lanes) == 0;
  };
  if (unused && std::any_of(unused_[unused->who].begin(), unused_[unused->who].end(), is_kept)) return;
  Finding finding;
  finding.kind = FindingKind::kRace;
  finding.first = report_.describe_access(others);
  finding.second = report_.describe_access(access);
  finding.call = report_.call_of(access);
  report_.describe_place(finding, address, bytes);
  explain(finding, earlier, who, access);
  finding.finding_class = class_of(finding, earlier, who, access);
  if (unused) unused_[unused->who].push_back({*unused, earlier.site, access.site, std::move(finding)});
  else publish(std::move(finding), earlier.site, access.site);
}

// A new finding, or one that is worse than the weak order that the same two have shown before.
void Races::publish(Finding finding, uint32_t first_site, uint32_t second_site) {
  Finding* const weak = report_.weak(FindingKind::kRace, first_site, second_site);
  if (!weak) return report_.add(std::move(finding), first_site, second_site);
  if (finding.finding_class != FindingClass::kUnsynchronised) return;
  finding.occurrences = weak->occurrences;
  *weak = std::move(finding);
}

bool Races::is_unused(const Record& record) {
  const Site& site = sites_[record.site];
  if (!site.may_be_unused || site.operation != Operation::kRead || kind_of(record.who) != AgentKind::kWarp) return false;
  const WarpState* const warp = kernels_.find(record.who);
  if (!warp) return false;
  const auto used = warp->used.find(site.line);
  return used == warp->used.end() || !(used->second & record.lanes);
}

void Races::used(Key warp, const SourceLine* load, uint32_t lanes) {
  const auto found = unused_.find(warp);
  if (found == unused_.end()) return;
  std::vector<Unused>& kept = found->second;
  for (size_t i = 0; i < kept.size();) {
    if (sites_[kept[i].load.site].line != load || !(kept[i].load.lanes & lanes)) {
      ++i;
      continue;
    }
    const Unused race = std::move(kept[i]);
    kept.erase(kept.begin() + long(i));
    const bool is_new = report_.is_new(FindingKind::kRace, race.first_site, race.second_site);
    if (is_new || report_.weak(FindingKind::kRace, race.first_site, race.second_site)) publish(race.finding, race.first_site, race.second_site);
  }
}

void Races::found_equal(const Record& earlier, const Record& access, uint64_t address, uint32_t bytes) {
  if (!report_.is_new(FindingKind::kRace, earlier.site, access.site, true)) return;
  Finding finding;
  finding.kind = FindingKind::kRace;
  finding.finding_class = FindingClass::kBenign;
  finding.missing = MissingEdge::kEqualStores;
  finding.first = report_.describe_access(earlier);
  finding.second = report_.describe_access(access);
  finding.call = report_.call_of(access);
  report_.describe_place(finding, address, bytes);
  report_.add(std::move(finding), earlier.site, access.site);
}

FindingClass Races::class_of(const Finding& finding, const Record& earlier, const Accessor& who,
                             const Record& access) const {
  const Site &of_earlier = sites_[earlier.site], &of_access = sites_[access.site];
  const auto weak_if = [](bool is_weak) { return is_weak ? FindingClass::kWeakOrder : FindingClass::kUnsynchronised; };
  switch (finding.missing) {
    case MissingEdge::kScope:
    case MissingEdge::kFenceScope:
    case MissingEdge::kRelease:
    case MissingEdge::kAcquire:
    case MissingEdge::kDelivery: return FindingClass::kWeakOrder;
    // A plain store that a strong load polls, or data behind it. Other plain accesses to what others access by strong ones
    // lose updates, or read what no flag announces.
    case MissingEdge::kWeakFlag: {
      return weak_if(finding.edge_from.present || polls(of_earlier, of_access) || polls(of_access, of_earlier));
    }
    case MissingEdge::kMixedSize:
      return weak_if(of_earlier.operation != Operation::kAtomic && of_access.operation != Operation::kAtomic);
    // GPUs do let a bulk copy overtake loads before a barrier of the block or the warp. A tile that its readers give back
    // by an mbarrier, as pipelines of libraries do without a fence, is not known to have been overwritten early.
    case MissingEdge::kProxyFence: {
      const Past barriers{ClockRef(), who.past->block_time, who.past->warp_time};
      const bool is_own = earlier.who == who.own_warp && (earlier.lanes & ~who.own_lanes) == 0;
      return weak_if(of_earlier.operation == Operation::kRead && !is_own &&
                     !agents_.in_past(barriers, who.own_warp, who.block, who.in_block, earlier));
    }
    // All lanes have loaded a value together, and one of them updates it: they would have to part before the load.
    case MissingEdge::kWarpBarrier: {
      const bool is_update = of_earlier.operation == Operation::kRead && of_access.operation == Operation::kWrite;
      return weak_if(is_update && earlier.who == access.who && (earlier.lanes & access.lanes));
    }
    default: return FindingClass::kUnsynchronised;
  }
}

void Races::explain(Finding& finding, const Record& earlier, const Accessor& who, const Record& access) {
  const Site &of_earlier = sites_[earlier.site], &of_access = sites_[access.site];
  if (explain_flags(finding, earlier, who, access) || explain_puts(finding, earlier, who, access)) return;
  const bool is_async = of_earlier.proxy == Proxy::kAsync || of_earlier.proxy == Proxy::kTensorMap;
  if (who.non_coherent && agents_.ordered(who, earlier, false)) {
    finding.missing = MissingEdge::kNonCoherent;
  } else if (who.needs_proxy && !is_async && agents_.ordered(who, earlier, false)) {
    finding.missing = MissingEdge::kProxyFence;
  } else if (explain_by_failed_edge(finding, earlier, who)) {
  } else if (of_earlier.is_strong != of_access.is_strong && kind_of(earlier.who) == AgentKind::kWarp &&
             kind_of(access.who) == AgentKind::kWarp && !is_host_code(of_earlier) && !is_host_code(of_access) && !lacks_a_barrier(earlier, access) &&
             !reads_data(of_earlier.is_strong ? of_earlier : of_access) && !begins(of_earlier.what, "mbarrier.init")) {
    finding.missing = MissingEdge::kWeakFlag;
  } else {
    finding.missing = missing_between(finding, earlier, who, access);
  }
}

// An atomic beside a plain access of the same block, as of a counter that another thread sets: no flag, but a barrier is
// what blocks use there.
bool Races::lacks_a_barrier(const Record& earlier, const Record& access) const {
  const bool is_atomic = sites_[earlier.site].operation == Operation::kAtomic || sites_[access.site].operation == Operation::kAtomic;
  return is_atomic && agents_.block_index_of(earlier.who) == agents_.block_index_of(access.who);
}

// A put or get of a library that the accessor, or a flag that it has seen, comes after, but not after its completion.
bool Races::explain_puts(Finding& finding, const Record& earlier, const Accessor& who, const Record& access) {
  if (kind_of(earlier.who) != AgentKind::kChannel || agents_.channel(earlier.who).completion != Completion::kQuiet) return false;
  const Key issuer = agents_.channel(earlier.who).warp;
  const bool is_own_rank = agents_.rank_of(issuer) == agents_.rank_of(access.who);
  if (issuer == who.own_warp || agents_.ordered(who, Record{issuer, earlier.time, earlier.site, earlier.lanes}, false)) {
    finding.missing = is_own_rank ? MissingEdge::kQuiet : MissingEdge::kDelivery;
    return true;
  }
  if (!explain_by_failed_edge(finding, {issuer, earlier.time, earlier.site, earlier.lanes}, who)) return false;
  if (finding.missing == MissingEdge::kRelease) finding.missing = is_own_rank ? MissingEdge::kQuiet : MissingEdge::kDelivery;
  return true;
}

// Two strong accesses race only if a scope is too small or they overlap in part.
bool Races::explain_flags(Finding& finding, const Record& earlier, const Accessor& who, const Record& access) {
  const Site &of_earlier = sites_[earlier.site], &of_access = sites_[access.site];
  if (!of_earlier.is_strong || !of_access.is_strong || is_morally_strong(earlier, access)) return false;
  if (of_earlier.proxy != Proxy::kGeneric || of_access.proxy != Proxy::kGeneric) return false;
  if (who.non_coherent && agents_.ordered(who, earlier, false)) return false;
  finding.missing = of_earlier.element_bytes != of_access.element_bytes ? MissingEdge::kMixedSize : MissingEdge::kScope;
  finding.edge_from = finding.first;
  finding.edge_to = finding.second;
  return true;
}

bool Races::release_covers(const FailedEdge& edge, const Record& earlier) const {
  const Release& release = *edge.from;
  if (earlier.who == release.warp && earlier.lanes == 1u << edge.from_lane && earlier.time <= release.time) return true;
  return agents_.in_past(release.past, release.warp, agents_.block_index_of(release.warp), true, earlier);
}

// Whether a fence stands between an access and the flag: then the reader's side of the edge is the missing one.
bool Races::fence_covers(const FailedEdge& edge, const Record& earlier) const {
  const Release& release = *edge.from;
  const FencePoint& fence = release.fences[size_t(index_of(agents_.distance(release.warp, edge.to_warp)))];
  if (earlier.who == release.warp && earlier.lanes == 1u << edge.from_lane) return earlier.time <= fence.time;
  return agents_.in_past(fence.past, release.warp, agents_.block_index_of(release.warp), true, earlier);
}

bool Races::reader_is_known(const FailedEdge& edge, const Accessor& who) const {
  if (edge.to_warp == who.own_warp && edge.to_time <= who.own_time && !(who.own_lanes & ~edge.to_lanes)) return true;
  for (uint32_t lanes = edge.to_lanes; lanes; lanes &= lanes - 1) {
    if (agents_.ordered(who, Record{edge.to_warp, edge.to_time, edge.to_site, lanes & -lanes}, false)) return true;
  }
  return false;
}

// Looks for a flag that was read and made no edge, but would have made this one; in several hops if need be.
bool Races::explain_by_failed_edge(Finding& finding, const Record& earlier, const Accessor& who) {
  constexpr size_t kMostReached = 64;
  std::vector<FailedEdge> reached;
  // A flag that was loaded before the access leads nowhere from it.
  const auto take_reached = [&](const auto& is_reader, const auto& is_reached) {
    flags_.each_failed(earlier.time, is_reader, [&](const FailedEdge& edge) {
      if (reached.size() >= kMostReached || !is_reached(edge)) return;
      // Of a lane's stores, such as arrivals at a counter, the last leads wherever earlier ones do.
      const bool is_news = std::none_of(reached.begin(), reached.end(), [&](const FailedEdge& other) {
        return other.from->warp == edge.from->warp && other.from_lane == edge.from_lane &&
               other.from->time >= edge.from->time;
      });
      if (is_news) reached.push_back(edge);
    });
  };
  const auto is_known = [&](const FailedEdge& edge) { return reader_is_known(edge, who); };
  take_reached(is_known, [&](const FailedEdge& edge) { return is_known(edge) && release_covers(edge, earlier); });
  if (reached.empty()) take_reached(is_known, is_known);
  // A plain store that a strong load has seen is a flag itself, where no other flag leads from it.
  const auto is_own_flag = [&](const FailedEdge& edge) {
    return edge.reason == MissingEdge::kWeakFlag && edge.from->warp == earlier.who && edge.from->time == earlier.time && edge.from->site == earlier.site;
  };
  std::stable_partition(reached.begin(), reached.end(), [&](const FailedEdge& edge) { return !is_own_flag(edge); });
  for (size_t i = 0; i < reached.size(); ++i) {
    const FailedEdge edge = reached[i];
    if (release_covers(edge, earlier)) {
      const Release& release = *edge.from;
      const bool is_writers = edge.reason == MissingEdge::kRelease || edge.reason == MissingEdge::kFenceScope;
      finding.missing = is_writers && fence_covers(edge, earlier) ? MissingEdge::kAcquire : edge.reason;
      const bool has_fence = release.is_release || release.fences[0].time >= earlier.time;
      if (finding.missing == MissingEdge::kFenceScope && !has_fence) finding.missing = MissingEdge::kRelease;
      const uint32_t fence = finding.missing == MissingEdge::kFenceScope && !release.is_release ? release.fences[0].site : 0;
      const uint32_t from_site = fence ? fence : release.site;
      finding.edge_from = report_.describe_access(Record{release.warp, release.time, from_site, 1u << edge.from_lane});
      finding.edge_to = report_.describe_access(Record{edge.to_warp, edge.to_time, edge.to_site, edge.to_lanes});
      return true;
    }
    const auto comes_before = [&](const FailedEdge& other) {
      for (uint32_t lanes = other.to_lanes; lanes; lanes &= lanes - 1) {
        if (release_covers(edge, Record{other.to_warp, other.to_time, other.to_site, lanes & -lanes})) return true;
      }
      return false;
    };
    take_reached(comes_before, comes_before);
  }
  return false;
}

// Where no flag was read at all: by who the two are.
MissingEdge Races::missing_between(const Finding& finding, const Record& earlier, const Accessor& who,
                                   const Record& access) const {
  const Site &of_earlier = sites_[earlier.site], &of_access = sites_[access.site];
  const bool is_of_call = finding.region == "argument" || finding.region == "output";
  const bool is_own = agents_.rank_of(earlier.who) == agents_.rank_of(access.who);  // on another stream of the rank
  if (is_of_call && !is_own && (kind_of(earlier.who) == AgentKind::kStream) != (kind_of(access.who) == AgentKind::kStream)) {
    // The stream's own work on a call's tensors: what comes before its arrival or after its departure. A thread that is
    // in a later call than a departure came too early; in an earlier call than an arrival, too late.
    const bool contract_is_first = kind_of(earlier.who) == AgentKind::kStream;
    const int64_t of_contract = report_.call_of(contract_is_first ? earlier : access);
    const int64_t of_thread = report_.call_of(contract_is_first ? access : earlier);
    if (begins((contract_is_first ? of_earlier : of_access).what, "departure")) {
      return of_thread > of_contract ? MissingEdge::kArrival : MissingEdge::kDeparture;
    }
    return of_thread < of_contract ? MissingEdge::kDeparture : MissingEdge::kArrival;
  }
  if (kind_of(earlier.who) == AgentKind::kChannel) {
    const ChannelInfo& channel = agents_.channel(earlier.who);
    const bool issuer_is_known =
        agents_.distance(channel.warp, access.who) == Scope::kCta ||
        agents_.ordered(who, Record{channel.warp, earlier.time, earlier.site, channel.lanes}, false);
    if (issuer_is_known) return MissingEdge::kCompletion;
  }
  // It was issued before the first access of a thread of its block, and completed behind it.
  if (kind_of(access.who) == AgentKind::kChannel && kind_of(earlier.who) == AgentKind::kWarp &&
      agents_.distance(agents_.channel(access.who).warp, earlier.who) == Scope::kCta && earlier.time >= access.time) {
    return MissingEdge::kCompletion;
  }
  const auto warp_of = [&](Key key) {
    return kind_of(key) == AgentKind::kChannel ? agents_.channel(key).warp : key;
  };
  const Key a = warp_of(earlier.who), b = warp_of(access.who);
  if (kind_of(a) == AgentKind::kWarp && kind_of(b) == AgentKind::kWarp) {
    if (a == b) return MissingEdge::kWarpBarrier;
    if (agents_.block_index_of(a) == agents_.block_index_of(b)) return MissingEdge::kBlockBarrier;
  }
  if (agents_.rank_of(a) == agents_.rank_of(b)) {
    const auto stream_of = [&](Key key) {
      return kind_of(key) == AgentKind::kStream ? index_of(key) : agents_.grid(agents_.block_of(key).grid).stream;
    };
    if (stream_of(a) != stream_of(b)) return MissingEdge::kStreamOrder;
    const bool is_grid = kind_of(a) == AgentKind::kWarp && kind_of(b) == AgentKind::kWarp;
    if (is_grid && agents_.block_of(a).grid != agents_.block_of(b).grid) return MissingEdge::kGridDependency;
  }
  return MissingEdge::kNoSynchronisation;
}

}  // namespace pkb::emulator::detector
