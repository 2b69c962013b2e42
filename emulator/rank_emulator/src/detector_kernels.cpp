#include "detector_kernels.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pkb::emulator::detector {

// ---- kernels ----

GridState& Kernels::grid(const Launch& launch) {
  const auto found = grids_.find(launch.id);
  if (found == grids_.end()) throw std::logic_error("event of launch " + std::to_string(launch.id) + ", which has not begun");
  return *found->second;
}

BlockState& Kernels::block(const Launch& launch, uint32_t index) {
  if (last_ && last_launch_ == launch.id && last_block_ == index) return *last_;
  GridState& of = grid(launch);
  const auto found = of.blocks.find(index);
  if (found == of.blocks.end()) {
    throw std::logic_error("event of block " + std::to_string(index) + " of " + launch.kernel + ", which does not run");
  }
  last_launch_ = launch.id;
  last_block_ = index;
  last_ = &found->second;
  return *last_;
}

WarpState& Kernels::warp(const Warp& of) { return block(*of.launch, of.block).warps.at(of.warp); }

WarpState* Kernels::find(Key warp) {
  if (kind_of(warp) != AgentKind::kWarp) return nullptr;
  const auto found = blocks_.find(agents_.block_index_of(warp));
  return found == blocks_.end() ? nullptr : &found->second->warps[index_of(warp) - agents_.block_of(warp).first_warp];
}

void Kernels::launch_begin(const Launch& launch) {
  Stream& on = stream(launch.stream, launch.rank, launch.is_on_default_stream);
  auto state = std::make_unique<GridState>();
  state->stream = on.key;
  // A kernel that may overlap the one before it knows what that one knew at its beginning, even if that one has ended:
  // only griddepcontrol.wait makes its memory operations visible.
  const bool may_overlap = launch.prerequisite && launch.prerequisite == on.last_launch;
  state->initial = may_overlap ? clocks_.join(on.last_initial, on.enqueued) : published(on);
  if (!may_overlap) on.completed.clear();
  on.last_launch = launch.id;
  on.last_initial = state->initial;
  state->begin = clocks_.now();
  state->number = agents_.add_grid(on.key, launch.rank, launch.kernel, state->begin);
  state->blocks_per_cluster = std::max(1u, launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
  grids_[launch.id] = std::move(state);
}

void Kernels::block_begin(const Launch& launch, uint32_t index, uint32_t threads) {
  GridState& of = grid(launch);
  BlockState& state = of.blocks[index];
  state.launch = launch.id;
  state.threads = threads;
  // Blocks of a cluster stand side by side in the first dimension; any numbering that distinguishes clusters will do.
  const uint32_t x = index % launch.grid[0], y = index / launch.grid[0] % launch.grid[1];
  const uint32_t z = index / launch.grid[0] / launch.grid[1];
  const auto side = [&](int d) { return std::max(1u, launch.cluster[d]); };
  const uint32_t across = (launch.grid[0] + side(0) - 1) / side(0), down = (launch.grid[1] + side(1) - 1) / side(1);
  const uint32_t cluster = x / side(0) + across * (y / side(1) + down * (z / side(2)));
  state.number = agents_.add_block(of.number, index, cluster, threads);
  const Past past{of.initial, 0, 0};
  Fences fences;
  if (!strict_ && !launch.is_unfenced) fences.released.fill(FencePoint{past, 0, 0});
  fences.proxied_global = fences.proxied_shared = of.initial;  // the boundary of a kernel joins proxies
  const uint32_t first = agents_.block(state.number).first_warp;
  for (uint32_t w = 0; w * 32 < threads; ++w) {
    WarpState warp;
    warp.key = key_of(AgentKind::kWarp, first + w);
    warp.all_lanes = threads - w * 32 >= 32 ? ~0u : (1u << (threads - w * 32)) - 1;
    warp.epoch = clocks_.now();
    warp.past = PerLane<Past>(past);
    warp.fences = PerLane<Fences>(fences);
    if (!strict_) warp.initial = of.initial;
    state.warps.push_back(std::move(warp));
  }
  blocks_[state.number] = &state;
  last_ = nullptr;
}

void Kernels::join_known(const BlockState& block, Known& to) {
  const auto take = [&](size_t part, const ClockRef& clock) { to[part] = clocks_.join(to[part], clock); };
  for (const WarpState& warp : block.warps) {
    const bool is_uniform = warp.past.is_uniform() && warp.fences.is_uniform();
    for (uint32_t lanes = warp.all_lanes; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      take(kScopes, warp.past.at(lane).base);
      // The boundary of a kernel is a fence: what relaxed loads have seen is in the past afterwards.
      for (size_t d = 0; d < kScopes && !strict_; ++d) take(d, warp.fences.at(lane).read[d]);
      if (is_uniform) break;
    }
  }
}

ClockRef Kernels::together(const Known& known) {
  ClockRef all;
  for (const ClockRef& part : known) all = clocks_.join(all, part);
  return all;
}

void Kernels::block_end(const Launch& launch, uint32_t index) {
  GridState& of = grid(launch);
  BlockState& state = block(launch, index);
  join_known(state, of.end);
  last_ = nullptr;
  // A flag may be loaded when the block that stored it has ended.
  const uint32_t number = state.number;
  blocks_[number] = &ended_.emplace_back(std::move(state));
  if (ended_.size() > kMostEnded) {
    blocks_.erase(ended_.front().number);
    ended_.pop_front();
  }
  of.blocks.erase(index);
}

void Kernels::launch_end(const Launch& launch) {
  GridState& of = grid(launch);
  Stream& on = stream(launch.stream, launch.rank);
  const ClockRef end = together(of.end);
  on.past.base = clocks_.join(on.past.base, end);
  const Entry own{key_of(AgentKind::kGrid, of.number), clocks_.tick()};
  on.completed[launch.id] = clocks_.with(end, &own, 1);
  last_ = nullptr;
  for (const auto& [index, block] : of.blocks) blocks_.erase(block.number);
  grids_.erase(launch.id);
  published(on);
}

void Kernels::prerequisite_wait(const Warp& of) {
  if (!of.launch->prerequisite) return;
  const auto& completed = stream(of.launch->stream, of.rank).completed;
  const auto found = completed.find(of.launch->prerequisite);
  if (found == completed.end()) return;
  WarpState& state = warp(of);
  flags_.learn(state, of.lanes, found->second, found->second, found->second);
  if (strict_) return;
  // As at the beginning of a kernel that overlaps none.
  state.fences.change(of.lanes, state.all_lanes, [&](Fences& fences) {
    for (FencePoint& point : fences.released) point.past.base = clocks_.join(point.past.base, found->second);
  });
  state.fences.unite(state.all_lanes);
}

// ---- streams and hosts ----

Kernels::Stream& Kernels::stream(uint64_t id, int rank, bool is_default) {
  Stream& found = streams_[id];
  if (!found.key) found.key = agents_.add_stream(id, rank, false, is_default);
  return found;
}

Kernels::Stream& Kernels::host(int number) {
  Stream& found = hosts_[number];
  if (!found.key) found.key = agents_.add_stream(0, number, true, false);
  return found;
}

ClockRef Kernels::published(Stream& stream) {
  const Entry own{stream.key, clocks_.tick()};
  stream.past.base = clocks_.with(stream.past.base, &own, 1);
  return stream.past.base;
}

void Kernels::enqueue(const StreamOperation& operation) {
  stream_of_operation_[operation.id] = operation.stream;
  enqueued_[operation.id] = published(host(operation.host < 0 ? operation.rank : operation.host));
}

void Kernels::begin(const StreamOperation& operation) {
  Stream& on = stream(operation.stream, operation.rank, operation.is_on_default_stream);
  stream_of_operation_[operation.id] = operation.stream;
  const auto enqueued = enqueued_.find(operation.id);
  if (enqueued != enqueued_.end()) {
    on.past.base = clocks_.join(on.past.base, enqueued->second);
    on.enqueued = enqueued->second;
    enqueued_.erase(enqueued);
  }
  if (operation.kind == StreamOperationKind::kEventWait) {
    const auto event = events_.find(operation.event);
    if (event == events_.end()) return;
    const auto record = event->second.find(operation.event_generation);
    if (record != event->second.end()) on.past.base = clocks_.join(on.past.base, record->second);
  }
}

void Kernels::end(const StreamOperation& operation) {
  Stream& on = stream(operation.stream, operation.rank);
  const ClockRef now = published(on);
  if (operation.kind == StreamOperationKind::kEventRecord) events_[operation.event][operation.event_generation] = now;
  stream_of_operation_.erase(operation.id);
}

void Kernels::host_waited_stream(int number, uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& on = host(number);
  on.past.base = clocks_.join(on.past.base, published(found->second));
}

void Kernels::release(Stream& by, uint64_t object) {
  ClockRef& known = released_[object];
  known = clocks_.join(known, published(by));
}

void Kernels::acquire(Stream& by, uint64_t object) {
  const auto found = released_.find(object);
  if (found != released_.end()) by.past.base = clocks_.join(by.past.base, found->second);
}

void Kernels::host_joined(int number, int other) {
  if (number == other) return;
  const ClockRef known = published(host(other));
  Stream& on = host(number);
  on.past.base = clocks_.join(on.past.base, known);
}

void Kernels::host_waited_event(int number, uint64_t event, uint64_t generation) {
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  const auto record = found->second.find(generation);
  Stream& on = host(number);
  if (record != found->second.end()) on.past.base = clocks_.join(on.past.base, record->second);
}

// ---- accessors ----

Accessor Kernels::stream_accessor(uint64_t operation, int rank) {
  const auto found = stream_of_operation_.find(operation);
  Stream& of = found == stream_of_operation_.end() ? host(rank) : stream(found->second, rank);
  Accessor accessor;
  accessor.past = &of.past;
  accessor.who = of.key;
  accessor.time = clocks_.now();
  accessor.rank = rank;
  return accessor;
}

Accessor Kernels::lane_accessor(const WarpState& warp, uint32_t lanes) const {
  Accessor accessor;
  accessor.past = &warp.past.at(__builtin_ctz(lanes));
  accessor.who = accessor.own_warp = warp.key;
  accessor.lanes = accessor.own_lanes = lanes;
  accessor.time = warp.epoch;
  accessor.own_time = kAlways;
  accessor.block = agents_.block_index_of(warp.key);
  const BlockInfo& block = agents_.block(accessor.block);
  accessor.first_warp = key_of(AgentKind::kWarp, block.first_warp);
  accessor.warps = (block.threads + 31) / 32;
  accessor.in_block = true;
  accessor.rank = agents_.rank_of(warp.key);
  return accessor;
}

// ---- calls ----

void Kernels::arrived(int rank, uint64_t call) {
  calls_[rank].push_back({clocks_.now(), call});
  current_calls_[rank] = int64_t(call);
}

int64_t Kernels::call_at(int rank, Time time) const {
  const auto found = calls_.find(rank);
  if (found == calls_.end()) return -1;
  const auto after = std::upper_bound(found->second.begin(), found->second.end(), time,
                                      [](Time at, const Call& call) { return at < call.begin; });
  return after == found->second.begin() ? -1 : int64_t(std::prev(after)->number);
}

}  // namespace pkb::emulator::detector
