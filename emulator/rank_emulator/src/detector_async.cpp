#include "detector_async.h"

#include <algorithm>

namespace pkb::emulator::detector {

Key AsyncOperations::channel(uint32_t grid, Key warp, uint32_t lanes, Completion completion, bool reads) {
  return agents_.add_channel({grid, warp, lanes, completion, reads});
}

AsyncOperations::Groups& AsyncOperations::groups_of(Key warp, uint32_t lanes, Completion completion, uint64_t launch) {
  const int lane = completion == Completion::kWgmmaGroup ? -1 : __builtin_ctz(lanes);
  Groups& groups = groups_[{warp, lane, completion}];
  if (!groups.reads) {
    const uint32_t grid = agents_.block_of(warp).grid;
    groups.reads = channel(grid, warp, lanes, completion, true);
    groups.writes = channel(grid, warp, lanes, completion, false);
    groups.launch = launch;
  }
  return groups;
}

Key AsyncOperations::channel_at(const WarpState& warp, const AsyncOperation& of, uint64_t mbarrier) {
  Key& key = at_barriers_[{warp.key, __builtin_ctz(of.warp.lanes), mbarrier}];
  if (!key) key = channel(agents_.block_of(warp.key).grid, warp.key, of.warp.lanes, of.completion, false);
  return key;
}

void AsyncOperations::issue(const AsyncOperation& of, uint32_t site) {
  WarpState& warp = kernels_.warp(of.warp);
  if (const auto known = operations_.find(of.id); known != operations_.end()) {  // a further mbarrier
    Operation& operation = known->second;
    if (operation.targets.empty()) {
      operation.targets.push_back({operation.first_mbarrier, operation.writes});
      operation.reads = channel_at(warp, of, 0);  // whoever waits knows that the source has been read
    }
    operation.targets.push_back({of.mbarrier, channel_at(warp, of, of.mbarrier)});
    return;
  }
  Operation& operation = operations_[of.id];
  const int lane = __builtin_ctz(of.warp.lanes);
  operation.site = site;
  operation.warp = warp.key;
  operation.lanes = of.warp.lanes;
  operation.rank = of.warp.rank;
  operation.past = warp.past.at(lane);
  operation.proxied_global = warp.fences.at(lane).proxied_global;
  operation.proxied_shared = warp.fences.at(lane).proxied_shared;
  operation.launch = of.warp.launch->id;
  operation.time = clocks_.tick();
  warp.epoch = clocks_.now();
  // wgmma begins when all lanes of the warp have come to it.
  if (of.completion == Completion::kWgmmaGroup) operation.past.warp_time = operation.time;
  if (of.completion == Completion::kMbarrier) {
    operation.reads = operation.writes = channel_at(warp, of, of.mbarrier);
    operation.first_mbarrier = of.mbarrier;
  } else {
    Groups& groups = groups_of(warp.key, of.warp.lanes, of.completion, operation.launch);
    operation.reads = groups.reads;
    operation.writes = groups.writes;
    groups.open = operation.time;
    if (of.completion == Completion::kBulkGroup) groups.unread.emplace_back(groups.reads, operation.time, site, of.warp.lanes);
  }
}

void AsyncOperations::complete(const AsyncOperation& of) {
  const auto found = operations_.find(of.id);
  if (found == operations_.end()) return;
  if (of.completion == Completion::kMbarrier) {
    const Operation& operation = found->second;
    Key writes = operation.writes;
    for (const Target& target : operation.targets) {
      if (target.mbarrier == of.mbarrier) writes = target.writes;
    }
    barriers_.complete_operation(of.mbarrier, writes, operation.time);
    if (operation.reads != writes) barriers_.complete_operation(of.mbarrier, operation.reads, operation.time);
  }
}

void AsyncOperations::commit(const Warp& of, Completion completion) {
  const Key warp = kernels_.warp(of).key;
  const auto commit_one = [&](uint32_t lanes) {
    Groups& groups = groups_of(warp, lanes, completion, of.launch->id);
    groups.groups.push_back(groups.open);
    constexpr size_t kMost = 256;  // nobody leaves more groups pending
    if (groups.groups.size() > kMost) groups.groups.erase(groups.groups.begin(), groups.groups.end() - kMost / 2);
  };
  if (completion == Completion::kWgmmaGroup) return commit_one(of.lanes);
  for (uint32_t rest = of.lanes; rest; rest &= rest - 1) commit_one(rest & -rest);
}

void AsyncOperations::wait(const Warp& of, Completion completion, uint32_t pending, bool reads_only) {
  WarpState& warp = kernels_.warp(of);
  const auto wait_for = [&](uint32_t lanes) {
    Groups& groups = groups_of(warp.key, lanes, completion, of.launch->id);
    if (groups.groups.size() <= pending) return;
    const Time time = groups.groups[groups.groups.size() - 1 - pending];
    std::erase_if(groups.unread, [&](const Record& copy) { return copy.time <= time; });
    const Entry entries[] = {{groups.reads, time}, {groups.writes, reads_only ? 0 : time}};
    warp.past.change(lanes, warp.all_lanes, [&](Past& past) { past.base = clocks_.with(past.base, entries, 2); });
  };
  if (completion == Completion::kWgmmaGroup) return wait_for(of.lanes);
  for (uint32_t rest = of.lanes; rest; rest &= rest - 1) wait_for(rest & -rest);
}

void AsyncOperations::arrive(const Warp& of, Completion completion, uint64_t mbarrier) {
  const Key warp = kernels_.warp(of).key;
  for (uint32_t rest = of.lanes; rest; rest &= rest - 1) {
    const Groups& groups = groups_of(warp, rest & -rest, completion, of.launch->id);
    if (!groups.open) continue;
    barriers_.complete_operation(mbarrier, groups.reads, groups.open);
    barriers_.complete_operation(mbarrier, groups.writes, groups.open);
  }
}

std::vector<Record> AsyncOperations::end_block(const Launch& launch, uint32_t index) {
  const BlockInfo& block = agents_.block(kernels_.block(launch, index).number);
  const auto first_of = [&](uint32_t warp) {
    return groups_.lower_bound({key_of(AgentKind::kWarp, warp), -1, Completion::kMbarrier});
  };
  const auto begin = first_of(block.first_warp), end = first_of(block.first_warp + (block.threads + 31) / 32);
  std::vector<Record> unread;
  for (auto at = begin; at != end; ++at) unread.insert(unread.end(), at->second.unread.begin(), at->second.unread.end());
  groups_.erase(begin, end);
  return unread;
}

Accessor AsyncOperations::accessor(uint64_t id, bool reads, Space space, Proxy proxy, uint64_t address) const {
  const Operation& operation = operations_.at(id);
  Accessor accessor;
  accessor.past = &operation.past;
  accessor.who = reads ? operation.reads : operation.writes;
  const Region* const written = reads || operation.targets.empty() ? nullptr : regions_.find(address);
  for (const Target& target : operation.targets) {
    if (written && regions_.find(target.mbarrier) == written) accessor.who = target.writes;
  }
  accessor.time = operation.time;
  accessor.own_warp = operation.warp;
  accessor.own_lanes = operation.lanes;
  accessor.own_time = operation.time;
  accessor.block = agents_.block_index_of(operation.warp);
  accessor.in_block = true;
  accessor.rank = operation.rank;
  accessor.needs_proxy = proxy == Proxy::kAsync;
  accessor.proxied = (space == Space::kShared ? operation.proxied_shared : operation.proxied_global).get();
  return accessor;
}

void AsyncOperations::forget_launch(uint64_t launch) {
  std::erase_if(operations_, [&](const auto& entry) { return entry.second.launch == launch; });
  std::erase_if(groups_, [&](const auto& entry) { return entry.second.launch == launch; });
  at_barriers_.clear();  // channels of warps that are still running are made anew
}

}  // namespace pkb::emulator::detector
