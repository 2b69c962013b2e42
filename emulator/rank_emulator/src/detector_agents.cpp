#include "detector_agents.h"

#include <algorithm>
#include <cstring>

namespace pkb::emulator::detector {

Agents::Agents() : remembered_(kRemembered), warp_blocks_(1), blocks_(1), grids_(1), streams_(1), channels_(1) {}

Key Agents::parent(Key key) const {
  const uint32_t index = index_of(key);
  switch (kind_of(key)) {
    case AgentKind::kLane: return key_of(AgentKind::kWarp, index / 32);
    case AgentKind::kWarp: return key_of(AgentKind::kBlock, warp_blocks_[index]);
    case AgentKind::kBlock: return key_of(AgentKind::kGrid, blocks_[index].grid);
    case AgentKind::kGrid: return key_of(AgentKind::kStream, grids_[index].stream);
    // A barrier of the block says nothing of copies under way: only the end of the kernel does.
    case AgentKind::kChannel:
    case AgentKind::kDelivery: return channels_[index].outlives_kernel ? 0 : key_of(AgentKind::kGrid, channels_[index].grid);
    case AgentKind::kStream: return 0;
  }
  return 0;
}

uint32_t Agents::lanes(Key warp) const {
  const BlockInfo& block = blocks_[block_index_of(warp)];
  return std::min(block.threads - (index_of(warp) - block.first_warp) * 32, 32u);
}

Key Agents::add_stream(uint64_t id, int rank, bool is_host, bool is_default) {
  streams_.push_back({id, rank, is_host, is_default});
  return key_of(AgentKind::kStream, uint32_t(streams_.size() - 1));
}

uint32_t Agents::add_grid(Key stream, int rank, const char* kernel, Time begin) {
  grids_.push_back({index_of(stream), rank, kernel ? kernel : "", begin});
  return uint32_t(grids_.size() - 1);
}

uint32_t Agents::add_block(uint32_t grid, uint32_t index, uint32_t cluster, uint32_t threads) {
  const auto number = uint32_t(blocks_.size());
  blocks_.push_back({grid, index, cluster, uint32_t(warp_blocks_.size()), threads});
  warp_blocks_.resize(warp_blocks_.size() + (threads + 31) / 32, number);
  return number;
}

Key Agents::add_channel(const ChannelInfo& channel) {
  channels_.push_back(channel);
  return key_of(AgentKind::kChannel, uint32_t(channels_.size() - 1));
}

int Agents::rank_of(Key who) const {
  switch (kind_of(who)) {
    case AgentKind::kWarp: return grids_[block_of(who).grid].rank;
    case AgentKind::kStream: return streams_[index_of(who)].rank;
    case AgentKind::kChannel: return grids_[channels_[index_of(who)].grid].rank;
    default: return -1;
  }
}

Scope Agents::distance(Key a, Key b) const {
  if (kind_of(a) == AgentKind::kChannel) a = channels_[index_of(a)].warp;
  if (kind_of(b) == AgentKind::kChannel) b = channels_[index_of(b)].warp;
  if (kind_of(a) == AgentKind::kWarp && kind_of(b) == AgentKind::kWarp) {
    const uint32_t of_a = block_index_of(a), of_b = block_index_of(b);
    if (of_a == of_b) return Scope::kCta;
    if (blocks_[of_a].grid == blocks_[of_b].grid && blocks_[of_a].cluster == blocks_[of_b].cluster) return Scope::kCluster;
  }
  return rank_of(a) == rank_of(b) ? Scope::kGpu : Scope::kSys;
}

Time Agents::time_above(const Clock& clock, Key who) const {
  Remembered& known = remembered_[(clock.serial * 0x9e3779b9u ^ who * 0x85ebca6bu) >> 7 & (kRemembered - 1)];
  if (known.clock == clock.serial && known.who == who) return known.time;
  Time time = 0;
  for (Key key = who; key; key = parent(key)) time = std::max(time, clock.time_of(key));
  known = {clock.serial, who, time};
  return time;
}

bool Agents::covers(const Clock* clock, const Record& record) const {
  if (!clock || record.time > clock->latest) return false;
  if (record.time <= time_above(*clock, record.who)) return true;
  if (kind_of(record.who) != AgentKind::kWarp) return false;
  for (uint32_t lanes = record.lanes; lanes; lanes &= lanes - 1) {
    if (clock->time_of(lane_key(record.who, __builtin_ctz(lanes))) < record.time) return false;
  }
  return true;
}

bool Agents::in_past(const Past& past, Key own_warp, uint32_t own_block, bool in_block, const Record& record) const {
  if (in_block && kind_of(record.who) == AgentKind::kWarp) {
    if (record.who == own_warp && record.time <= past.warp_time) return true;
    if (record.time <= past.block_time && block_index_of(record.who) == own_block) return true;
  }
  return covers(past.base.get(), record);
}

bool Agents::ordered_by_clocks(const Accessor& to, const Record& record, bool record_is_generic) const {
  const bool is_own = record.who == to.own_warp && record.time <= to.own_time && (record.lanes & ~to.own_lanes) == 0 &&
                      (record.lanes & (record.lanes - 1)) == 0 && (to.own_lanes & (to.own_lanes - 1)) == 0;
  const bool is_same_operation = kind_of(to.who) != AgentKind::kWarp && record.who == to.who &&
                                 (record.time == to.time || kind_of(to.who) == AgentKind::kStream);
  if (is_same_operation) return true;
  if (!is_own && !in_past(*to.past, to.own_warp, to.block, to.in_block, record)) return false;
  return !to.needs_proxy || !record_is_generic || covers(to.proxied, record);
}

uint32_t Sites::of(const Access& access) {
  const uint64_t kind = uint64_t(access.operation) | uint64_t(access.order) << 4 | uint64_t(access.scope) << 8 |
                        uint64_t(access.space) << 12 | uint64_t(access.proxy) << 16 | uint64_t(access.decides) << 20 |
                        uint64_t(access.element_bytes) << 24;
  const uint64_t hash = (reinterpret_cast<uintptr_t>(access.warp.line) * 0x9e3779b97f4a7c15u) ^ kind;
  LastAccess& last = last_accesses_[hash >> 32 & (kLastAccesses - 1)];
  if (last.line && last.line == access.warp.line && last.opcode == access.warp.opcode && last.kind == kind) return last.site;
  Site like{};
  like.line = access.warp.line;
  like.operation = access.operation;
  like.order = access.order;
  like.scope = access.scope;
  like.space = access.space;
  like.proxy = access.proxy;
  like.element_bytes = access.element_bytes;
  like.decides = access.decides;
  like.may_be_unused = access.may_be_unused;  // as the line says, which is that of one instruction
  last = {access.warp.line, access.warp.opcode, kind, find(hash, like, access.warp.opcode)};
  return last.site;
}

uint32_t Sites::of(const RangeAccess& access) {
  if (last_range_.site && last_range_.line && last_range_.what == access.what && last_range_.line == access.line &&
      last_range_.operation == access.operation && last_range_.proxy == access.proxy && last_range_.space == access.space && last_range_.element_bytes == access.element_bytes) {
    return last_range_.site;
  }
  Site like{};
  like.what = access.what ? access.what : "";
  like.line = access.line;
  like.operation = access.operation;
  like.space = access.space;
  like.proxy = access.proxy;
  like.element_bytes = 1;
  if (access.operation == Operation::kAtomic) {
    // PTX gives reductions of bulk copies .relaxed.gpu and has no wider ones; they are performed where the memory is, so that
    // those of several GPUs lose nothing of each other.
    like.order = Order::kRelaxed;
    like.scope = Scope::kSys;
    like.element_bytes = access.element_bytes;
  }
  last_range_ = {access.what, access.line, access.operation, access.proxy, access.space, access.element_bytes, of(like)};
  return last_range_.site;
}

uint32_t Sites::of(const Site& site) {
  const uint64_t hash = std::hash<std::string>()(site.what) ^ (reinterpret_cast<uintptr_t>(site.line) * 31) ^
                        uint64_t(site.operation);
  return find(hash, site, site.what.c_str());
}

uint32_t Sites::find(uint64_t hash, const Site& like, const char* what) {
  what = what ? what : "";
  const auto [first, last] = numbers_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    const Site& site = sites_[at->second];
    if (site.line == like.line && site.operation == like.operation && site.order == like.order &&
        site.scope == like.scope && site.proxy == like.proxy && site.space == like.space &&
        site.element_bytes == like.element_bytes && site.decides == like.decides && std::strcmp(site.what.c_str(), what) == 0) {
      return at->second;
    }
  }
  Site site = like;
  site.what = what;
  site.is_strong = site.order != Order::kWeak;
  site.is_non_coherent = site.operation == Operation::kRead && (site.what.find(".nc") != std::string::npos || site.what.starts_with("tex."));
  sites_.push_back(site);
  is_strong_.push_back(site.is_strong);
  numbers_.emplace(hash, uint32_t(sites_.size() - 1));
  return uint32_t(sites_.size() - 1);
}

}  // namespace pkb::emulator::detector
