#include "detector_races.h"

#include <algorithm>

namespace pkb::emulator::detector {
namespace {

bool is_bulk_reduction(const Site& site) { return site.proxy == Proxy::kAsync && site.operation == Operation::kAtomic; }

bool is_exchange(const Site& site) {
  return site.what.find(".cas.") != std::string::npos || site.what.find(".exch.") != std::string::npos;
}

}  // namespace

uint32_t Races::read_lanes(Accessor who, uint32_t site, const Access& access) {
  uint32_t groups = 0;
  for (uint32_t rest = access.warp.lanes; rest; ++groups) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)];
    uint32_t group = rest & -rest;
    for (rest &= rest - 1; rest && access.addresses[__builtin_ctz(rest)] == address; rest &= rest - 1) group |= rest & -rest;
    who.lanes = who.own_lanes = group;
    const Record record{who.who, who.time, site, group};
    shadow_.for_cells(address, access.bytes, [&](Cell& cell, uint64_t at, uint32_t size) {
      if (!read_quickly(cell, who, record)) read_cell(cell, who, record, at, size);
    });
  }
  return groups;
}

void Races::write_lanes(Accessor who, uint32_t site, const Access& access) {
  for (uint32_t rest = access.warp.lanes; rest; rest &= rest - 1) {
    const uint64_t address = access.addresses[__builtin_ctz(rest)];
    who.lanes = who.own_lanes = rest & -rest;
    const bool is_same = !(access.wrote & who.lanes);
    const Record record{who.who, who.time, site, who.lanes};
    shadow_.for_cells(address, access.bytes, [&](Cell& cell, uint64_t at, uint32_t size) {
      if (write_quickly(cell, who, record)) return;
      if (is_same) write_same_cell(cell, who, record, at, size);
      else write_cell(cell, who, record, at, size);
    });
    if (!is_same && access.bytes >= Shadow::kLineBytes) shadow_.merge_lines(address, access.bytes, record);
  }
}

inline bool Races::read_quickly(Cell& cell, const Accessor& who, const Record& access) const {
  const Record &write = cell.write, &read = cell.read;
  if (read.who == access.who && read.time == access.time && read.lanes == access.lanes && read.site == access.site &&
      !read.precedes_write) {  // a poll that comes after the write may observe it
    return true;
  }
  if (write.present()) {
    if (write.has_equals || who.non_coherent || !Agents::follows_in_block(who, write)) return false;
  }
  if (read.present()) {
    if (read.site == kManyReads || sites_.is_strong(read.site) || !Agents::follows_in_block(who, read)) return false;
  }
  cell.read = access;
  cell.read.follows_own = write.present();
  return true;
}

inline bool Races::write_quickly(Cell& cell, const Accessor& who, const Record& access) const {
  const Record &write = cell.write, &read = cell.read;
  if (write.present()) {
    if (write.has_equals || sites_.is_strong(write.site) || !Agents::follows_in_block(who, write)) return false;
  }
  if (read.present()) {
    if (read.site == kManyReads || !Agents::follows_in_block(who, read)) return false;
    cell.read = Record();
  }
  cell.write = access;
  return true;
}

void Races::read(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes) {
  const Record access{who.who, who.time, site, who.lanes};
  shadow_.for_cells(address, bytes, [&](Cell& cell, uint64_t at, uint32_t size) { read_cell(cell, who, access, at, size); });
}

void Races::write(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes) {
  const Record access{who.who, who.time, site, who.lanes};
  if (is_bulk_reduction(sites_[site])) {
    shadow_.for_cells(address, bytes, [&](Cell& cell, uint64_t at, uint32_t size) { reduce_cell(cell, who, access, at, size); });
    return;
  }
  shadow_.for_cells(address, bytes, [&](Cell& cell, uint64_t at, uint32_t size) { write_cell(cell, who, access, at, size); });
  if (bytes >= Shadow::kLineBytes) shadow_.merge_lines(address, bytes, access);
}

void Races::write_same(const Accessor& who, uint32_t site, uint64_t address, uint64_t bytes) {
  const Record access{who.who, who.time, site, who.lanes};
  shadow_.for_cells(address, bytes,
                    [&](Cell& cell, uint64_t at, uint32_t size) { write_same_cell(cell, who, access, at, size); });
}

void Races::forget_matched(const Accessor& who, uint64_t address, uint64_t bytes) {
  const auto is_over = [&](const Record& access) {
    const WarpState* const warp = sites_.is_strong(access.site) ? kernels_.find(access.who) : nullptr;
    return warp && std::any_of(warp->matches.begin(), warp->matches.end(), [&](const WarpState::Match& match) {
      if (match.time < access.time || (access.lanes & ~match.lanes)) return false;
      for (uint32_t rest = match.lanes; rest; rest &= rest - 1) {
        if (agents_.ordered(who, {access.who, match.time, access.site, rest & -rest}, false)) return true;
      }
      return false;
    });
  };
  shadow_.for_cells(address, bytes, [&](Cell& cell, uint64_t, uint32_t) {
    if (cell.write.present() && is_over(cell.write)) cell.write = Record();
    if (cell.read.site == kManyReads && cell.read.present()) {
      std::erase_if(shadow_.reads_of(cell), is_over);
      if (shadow_.reads_of(cell).empty()) shadow_.clear_reads(cell);
    } else if (cell.read.present() && is_over(cell.read)) {
      cell.read = Record();
    }
  });
}

void Races::check_follows(const Record& earlier, const Accessor& who, uint32_t site, uint64_t address, uint32_t bytes) {
  if (!earlier.present() || agents_.ordered(who, earlier, false)) return;
  found(earlier, who, {who.who, who.time, site, who.lanes}, address, bytes);
}

bool Races::is_own_store(const Record& write, const Accessor& who) const {
  return who.in_block && kind_of(write.who) == AgentKind::kWarp && agents_.block_index_of(write.who) == who.block;
}

void Races::read_cell(Cell& cell, const Accessor& who, const Record& of, uint64_t address, uint32_t bytes) {
  Record access = of;
  const Record& last = cell.read;
  if (last.who == access.who && last.time == access.time && last.lanes == access.lanes && last.site == access.site &&
      !last.precedes_write) {  // a poll that comes after the write may observe it
    return;
  }
  if (cell.write.present() && !cell.write.has_equals && !who.non_coherent && Agents::follows_in_block(who, cell.write)) {
    access.follows_own = 1;
  } else if (cell.write.present()) {
    racing_.clear();
    bool follows_own = false;
    uint32_t without_own = who.own_lanes;  // lanes that have made none of the stores themselves
    const auto visit = [&](const Record& write) {
      if (write.who == who.own_warp && write.time <= who.own_time) without_own &= ~write.lanes;
      if (races(cell, write, false, who, access)) racing_.push_back(write);
      else follows_own = follows_own || is_own_store(write, who);
    };
    if (cell.write.has_equals) {
      visit(cell.write);
      equal_stores_.for_each(address, bytes, visit);
      follows_own = follows_own || (who.own_lanes && !without_own);
      if (follows_own) racing_.clear();
    } else if (races(cell, cell.write, false, who, access)) {
      racing_.push_back(cell.write);
    } else {
      follows_own = is_own_store(cell.write, who);
    }
    for (const Record& write : racing_) {
      const Site& load = sites_[access.site];
      const bool is_flag = load.is_strong && !sites_[write.site].is_strong && !reads_data(load);
      if (is_flag) {
        flags_.observe_plain(write, who, access, address, kernels_.find(write.who), kernels_.find(who.who));
      }
      found(write, who, access, address, bytes);
    }
    access.follows_own = follows_own;
  }
  note_read(cell, who, access);
}

// Stores that are unordered among themselves are kept side by side. Earlier reads race with this one, except those behind
// a store of their own block that stands beside it.
void Races::write_same_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes) {
  const Record last = cell.write;
  const auto is_beside = [&](const Record& earlier) {
    const Site& site = sites_[earlier.site];
    if (site.is_strong || site.proxy != Proxy::kGeneric) return false;
    if (kind_of(earlier.who) == AgentKind::kWarp) return kind_of(access.who) == AgentKind::kWarp;
    // Threads that copy the same words by one cp.async, as where a last piece is shorter than their tile.
    return kind_of(earlier.who) == AgentKind::kChannel && earlier.site == access.site && who.in_block &&
           agents_.block_index_of(agents_.channel(earlier.who).warp) == who.block;
  };
  equals_.clear();
  const auto visit = [&](const Record& earlier) {
    if (!races(cell, earlier, false, who, access)) return;
    if (!is_beside(earlier)) return found(earlier, who, access, address, bytes);
    if (earlier.who != access.who) found_equal(earlier, access, address, bytes);
    const auto same = std::find_if(equals_.begin(), equals_.end(), [&](const Record& other) {
      return other.who == earlier.who && other.time == earlier.time && other.site == earlier.site;
    });
    if (same != equals_.end()) same->lanes |= earlier.lanes;
    else equals_.push_back(earlier);
  };
  if (last.has_equals) equal_stores_.for_each(address, bytes, visit);
  if (last.present()) {
    visit(last);
    if (sites_.is_strong(last.site)) flags_.forget(address, bytes);
  }
  constexpr size_t kMost = 64;
  if (equals_.size() > kMost) equals_.erase(equals_.begin());
  const auto check = [&](const Record& read) {
    if (!races(cell, read, true, who, access)) return;
    const bool is_equal = read.follows_own && kind_of(read.who) == AgentKind::kWarp &&
                          std::any_of(equals_.begin(), equals_.end(), [&](const Record& store) {
                            return kind_of(store.who) == AgentKind::kWarp && agents_.block_index_of(store.who) == agents_.block_index_of(read.who);
                          });
    if (!is_equal) found(read, who, access, address, bytes);
  };
  if (cell.read.site == kManyReads) {
    std::vector<Record>& set = shadow_.reads_of(cell);
    std::for_each(set.begin(), set.end(), check);
    std::erase_if(set, [&](const Record& read) { return agents_.ordered(who, read, false); });
    for (Record& read : set) read.precedes_write = 1;
    if (set.empty()) shadow_.clear_reads(cell);
  } else if (cell.read.present()) {
    check(cell.read);
    if (agents_.ordered(who, cell.read, false)) cell.read = Record();
    cell.read.precedes_write = 1;
  }
  cell.write = access;
  cell.write.has_equals = !equals_.empty();
  if (last.has_equals || cell.write.has_equals) equal_stores_.replace(address, bytes, equals_);
}

void Races::write_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes) {
  const Record& last = cell.write;
  if (last.who == access.who && last.time == access.time && last.lanes == access.lanes && last.site == access.site &&
      !cell.read.present() && !last.has_equals) {
    return;
  }
  const bool is_strong = sites_.is_strong(access.site);
  if (last.present()) {
    if (races(cell, last, false, who, access)) {
      // An atomic that observes a plain store: a lock that it takes, where it exchanges; else an update that may be lost,
      // and a flag for what follows alone.
      const Site& site = sites_[access.site];
      const bool observes = site.operation == Operation::kAtomic && !sites_[last.site].is_strong;
      if (!observes || !is_exchange(site)) found(last, who, access, address, bytes);
      if (observes) flags_.observe_plain(last, who, access, address, kernels_.find(last.who), kernels_.find(who.who));
      if (observes && is_exchange(site)) found(last, who, access, address, bytes);
    }
    if (last.has_equals) {
      equal_stores_.for_each(address, bytes, [&](const Record& earlier) {
        if (races(cell, earlier, false, who, access)) found(earlier, who, access, address, bytes);
      });
    }
    if (!is_strong && sites_.is_strong(last.site)) flags_.forget(address, bytes);
  }
  // Polls that are not ordered with a strong store stay: a plain store that follows may race with them.
  if (cell.read.site == kManyReads) {
    std::vector<Record>& set = shadow_.reads_of(cell);
    for (const Record& read : set) {
      if (races(cell, read, true, who, access)) found(read, who, access, address, bytes);
    }
    if (is_strong) std::erase_if(set, [&](const Record& read) { return agents_.ordered(who, read, false); });
    for (Record& read : set) read.precedes_write = 1;
    if (!is_strong || set.empty()) shadow_.clear_reads(cell);
  } else if (cell.read.present()) {
    if (races(cell, cell.read, true, who, access)) found(cell.read, who, access, address, bytes);
    if (!is_strong || agents_.ordered(who, cell.read, false)) cell.read = Record();
    cell.read.precedes_write = 1;
  }
  cell.write = access;
}

void Races::reduce_cell(Cell& cell, const Accessor& who, const Record& access, uint64_t address, uint32_t bytes) {
  constexpr size_t kMost = 64;
  equals_.clear();
  const auto keep = [&](const Record& earlier) {
    const bool stands = earlier.who != access.who && is_bulk_reduction(sites_[earlier.site]) && !agents_.ordered(who, earlier, false);
    if (stands && equals_.size() < kMost) equals_.push_back(earlier);
  };
  const bool had_equals = cell.write.has_equals;
  if (cell.write.present()) keep(cell.write);
  if (had_equals) equal_stores_.for_each(address, bytes, keep);
  write_cell(cell, who, access, address, bytes);
  cell.write.has_equals = !equals_.empty();
  if (had_equals || cell.write.has_equals) equal_stores_.replace(address, bytes, equals_);
}

void Races::note_read(Cell& cell, const Accessor& who, const Record& access) {
  if (!cell.read.present()) {
    cell.read = access;
    return;
  }
  if (cell.read.site != kManyReads && !sites_.is_strong(cell.read.site) && !sites_.is_strong(access.site) &&
      Agents::follows_in_block(who, cell.read)) {
    cell.read = access;
    return;
  }
  // FastTrack: a read takes the place of those before it that are ordered, unless it excuses stores that they do not: by
  // being strong, or by its scope. Strong reads that have observed the last store stay: each orders it for those who know
  // of that read.
  const Site& site = sites_[access.site];
  const bool is_after_strong_write = cell.write.present() && sites_[cell.write.site].is_strong;
  const auto excuse = [](const Site& of) { return of.is_strong ? effective_scope(of.order, of.scope) : Scope::kNone; };
  const auto has_observed = [&](const Record& old) { return is_after_strong_write && !old.precedes_write && sites_[old.site].is_strong; };
  const auto replaces = [&](const Record& old) {
    const Scope before = excuse(sites_[old.site]);
    if (before < excuse(site) || (has_observed(old) && (old.time != access.time || before > excuse(site)))) return false;
    return (old.who == access.who && (old.lanes & ~access.lanes) == 0 && kind_of(old.who) == AgentKind::kWarp) ||
           agents_.ordered(who, old, false);
  };
  if (cell.read.site != kManyReads) {
    if (replaces(cell.read)) {
      cell.read = access;
      return;
    }
    if (cell.read.who == access.who && cell.read.time == access.time && cell.read.site == access.site) {
      cell.read.lanes |= access.lanes;
      cell.read.follows_own &= access.follows_own;
      return;
    }
    shadow_.make_set(cell).push_back(access);
    return;
  }
  std::vector<Record>& set = shadow_.reads_of(cell);
  bool is_first = true;
  for (Record& old : set) {
    if (old.who != access.who || old.site != access.site) continue;
    if ((old.lanes & ~access.lanes) == 0 && (old.time == access.time || !is_first || !has_observed(old))) {
      old = access;
      return;
    }
    is_first = false;
    if (old.time == access.time) {
      old.lanes |= access.lanes;
      old.follows_own &= access.follows_own;
      return;
    }
  }
  if (set.size() >= 4 && (set.size() & (set.size() - 1)) == 0) std::erase_if(set, replaces);
  if (set.size() < Shadow::kMostReads) {
    set.push_back(access);
  } else {
    // Of each rank some readers are kept.
    const size_t begin = (access.time * 2654435761u) % set.size();
    size_t victim = begin;
    for (size_t i = 0; i < set.size(); ++i) {
      const size_t at = (begin + i) % set.size();
      if (agents_.rank_of(set[at].who) == who.rank) {
        victim = at;
        break;
      }
    }
    set[victim] = access;
  }
}

bool Races::races(const Cell& cell, const Record& earlier, bool earlier_is_read, const Accessor& who, const Record& access) {
  if (!who.non_coherent && Agents::follows_in_block(who, earlier)) return false;
  const Site& site = sites_[earlier.site];
  // Reads count as well: a bulk copy may overwrite what a load that comes before it has not read yet, unless a proxy fence
  // stands between them (PTX ISA 8.7.1, "Proxies").
  const bool is_generic = site.proxy != Proxy::kAsync && site.proxy != Proxy::kTensorMap;
  if (agents_.ordered(who, earlier, is_generic)) {
    // Its own kernel's stores may be missing from the cache that ld.global.nc reads; what a peer has stored is not in
    // that cache unless it was read too early.
    return who.non_coherent && !earlier_is_read && kind_of(earlier.who) == AgentKind::kWarp &&
           agents_.block_of(earlier.who).grid == agents_.block(who.block).grid;
  }
  // A flag that host code has used unseen may lie between.
  if (is_host_code(site) && kind_of(access.who) == AgentKind::kWarp && kernels_.is_unseen(agents_.rank_of(earlier.who), earlier.time)) return false;
  if (is_host_code(sites_[access.site]) && kernels_.is_unseen(who.rank, earlier.time)) return false;
  if (!site.is_strong) return true;
  if (is_morally_strong(earlier, access)) return false;
  return earlier_is_read || !is_observed(cell, earlier, who);
}

bool Races::is_morally_strong(const Record& a, const Record& b) const {
  const Site &of_a = sites_[a.site], &of_b = sites_[b.site];
  if (!of_a.is_strong || !of_b.is_strong) return false;
  const bool with_host = is_host_code(of_a) || is_host_code(of_b);
  if (!with_host && of_a.element_bytes != of_b.element_bytes) return false;
  const bool both_reduce = is_bulk_reduction(of_a) && is_bulk_reduction(of_b);
  const auto is_generic = [](const Site& site) { return site.proxy == Proxy::kGeneric || is_host_code(site); };
  if (!both_reduce && !(is_generic(of_a) && is_generic(of_b))) return false;
  const Scope distance = agents_.distance(a.who, b.who);
  return effective_scope(of_a.order, of_a.scope) >= distance && effective_scope(of_b.order, of_b.scope) >= distance;
}

// Whether a strong load that happens before this access has observed the earlier strong store: then they are in
// causality order (PTX ISA 8.9.5), though nothing that came before the store is.
bool Races::is_observed(const Cell& cell, const Record& earlier, const Accessor& who) {
  const auto observes = [&](const Record& read) {
    return !read.precedes_write && is_morally_strong(earlier, read) && agents_.ordered(who, read, false);
  };
  if (cell.read.site != kManyReads) return cell.read.present() && observes(cell.read);
  const std::vector<Record>& set = shadow_.reads_of(cell);
  return std::any_of(set.begin(), set.end(), observes);
}

}  // namespace pkb::emulator::detector
