// Residency: which blocks of a grid fit onto the multiprocessors of its rank, how they begin and end.
#include <algorithm>
#include <cstring>

#include "engine.h"

namespace pkb::emulator {

uint32_t occupancy(const Device& device, const Kernel& kernel, uint32_t threads, uint32_t dynamic_shared) {
  const uint32_t warps = (threads + kLanes - 1) / kLanes;
  if (warps == 0 || threads > device.threads_of_block) return 0;
  const uint32_t shared = kernel.static_shared + dynamic_shared;
  if (shared > device.shared_of_block) return 0;
  const uint32_t registers = warps * kLanes * ((uint32_t(kernel.registers) + 7) / 8 * 8);
  uint32_t blocks = std::min(device.blocks, device.threads / (warps * kLanes));
  blocks = std::min(blocks, device.registers / registers);
  return std::min(blocks, device.shared_bytes / ((shared + device.reserved_shared + 127) / 128 * 128));
}

void Engine::claim(const Grid& grid, int multiprocessor, int sign) {
  Multiprocessor& place = multiprocessors_[size_t(grid.launch.rank)][size_t(multiprocessor)];
  const uint32_t* const block = grid.launch.block;
  const uint32_t warps = (block[0] * block[1] * block[2] + kLanes - 1) / kLanes;
  const auto change = [&](uint32_t& value, uint32_t by) { value = sign > 0 ? value + by : value - by; };
  change(place.blocks, 1);
  change(place.threads, warps * kLanes);
  change(place.registers, warps * kLanes * ((uint32_t(grid.kernel->registers) + 7) / 8 * 8));
  change(place.shared, (grid.launch.shared_bytes + device.reserved_shared + 127) / 128 * 128);
}

// The multiprocessor with the fewest blocks that has room for one more; -1: none.
int Engine::room_for(const Grid& grid, const std::vector<int>& taken) const {
  const uint32_t* const block = grid.launch.block;
  const uint32_t warps = (block[0] * block[1] * block[2] + kLanes - 1) / kLanes;
  const uint32_t registers = warps * kLanes * ((uint32_t(grid.kernel->registers) + 7) / 8 * 8);
  const uint32_t shared = (grid.launch.shared_bytes + device.reserved_shared + 127) / 128 * 128;
  const auto& all = multiprocessors_[size_t(grid.launch.rank)];
  int best = -1;
  uint32_t fewest = ~0u;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto more = uint32_t(std::count(taken.begin(), taken.end(), int(i)));
    const uint32_t blocks = all[i].blocks + more;
    const bool fits = blocks < device.blocks && all[i].threads + (more + 1) * warps * kLanes <= device.threads &&
                      all[i].registers + (more + 1) * registers <= device.registers && all[i].shared + (more + 1) * shared <= device.shared_bytes;
    if (fits && blocks < fewest) {
      fewest = blocks;
      best = int(i);
    }
  }
  return best;
}

void Engine::dispatch() {
  if (!dispatchable_) return;
  dispatchable_ = false;
  for (size_t i = 0; i < running_.size(); ++i) {
    Grid& grid = *running_[i].grid;
    while (grid.next_cluster < grid.clusters && make_cluster(grid)) {
    }
  }
}

bool Engine::make_cluster(Grid& grid) {
  const Launch& launch = grid.launch;
  const uint32_t blocks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  std::vector<int> places;
  for (uint32_t i = 0; i < blocks; ++i) {
    const int place = room_for(grid, places);
    if (place < 0) return false;
    places.push_back(place);
  }
  Cluster& cluster = *grid.resident.emplace_back(std::make_unique<Cluster>());
  cluster.grid = &grid;
  cluster.index = grid.next_cluster++;
  cluster.shared = shared_pool_.take(uint64_t(kSharedStride) * blocks);
  cluster.alive_blocks = blocks;
  for (uint32_t i = 0; i < blocks; ++i) {
    claim(grid, places[i], 1);
    make_block(cluster, i, places[i]);
  }
  for (auto& block : cluster.blocks) {
    for (WarpState& warp : block->warps) queue(warp);
  }
  ++progress;
  ++effects;
  return true;
}

void Engine::make_block(Cluster& cluster, uint32_t in_cluster, int multiprocessor) {
  Grid& grid = *cluster.grid;
  const Launch& launch = grid.launch;
  Block& block = *cluster.blocks.emplace_back(std::make_unique<Block>());
  block.cluster = &cluster;
  block.grid = &grid;
  block.in_cluster = in_cluster;
  block.multiprocessor = multiprocessor;
  uint32_t clusters[3], rest = cluster.index, within = in_cluster;
  for (int d = 0; d < 3; ++d) {
    clusters[d] = launch.grid[d] / launch.cluster[d];
    block.coordinates[d] = rest % clusters[d] * launch.cluster[d] + within % launch.cluster[d];
    rest /= clusters[d];
    within /= launch.cluster[d];
  }
  block.index = block.coordinates[0] + launch.grid[0] * (block.coordinates[1] + launch.grid[1] * block.coordinates[2]);
  block.threads = launch.block[0] * launch.block[1] * launch.block[2];
  block.shared = cluster.shared + uint64_t(in_cluster) * kSharedStride;
  block.shared_bytes = launch.shared_bytes;
  std::memset(block.shared, 0xff, block.shared_bytes);
  if (block.shared_bytes) {
    block.shared_region = memory.add(RegionKind::kShared, launch.rank, launch.kernel, reinterpret_cast<uint64_t>(block.shared), block.shared_bytes,
                                     Space::kShared, true, 0, false, launch.id, block.index);
  }
  if (grid.kernel->uses_reserved_shared) {
    char* const reserved = block.shared + kReservedSharedOffset;
    std::memset(reserved, 0xff, kReservedSharedBytes);
    block.reserved_region = memory.add(RegionKind::kShared, launch.rank, "reserved shared memory", reinterpret_cast<uint64_t>(reserved),
                                       kReservedSharedBytes, Space::kShared, true, 0, true, launch.id, block.index);
  }
  const uint32_t warps = (block.threads + kLanes - 1) / kLanes;
  const uint64_t warp_bytes = grid.kernel->frame_bytes + kSpecialBytes * uint32_t(Special::kCount), local_bytes = uint64_t(grid.kernel->local_bytes) * kLanes * warps;
  block.registers = pool_.take(warp_bytes * warps);
  std::memset(block.registers, 0, warp_bytes * warps);
  if (local_bytes) {
    block.local = pool_.take(local_bytes);
    // The stack beyond the kernel's direct calls can be large, and is hardly ever used.
    const uint64_t stride = grid.kernel->local_bytes, poisoned = grid.kernel->local_of_stack ? grid.kernel->bounded_local : stride;
    if (poisoned == stride) std::memset(block.local, 0xff, local_bytes);
    for (uint64_t at = 0; poisoned < stride && at < local_bytes; at += stride) std::memset(block.local + at, 0xff, poisoned);
    block.local_region = memory.add(RegionKind::kLocal, launch.rank, launch.kernel, reinterpret_cast<uint64_t>(block.local), local_bytes,
                                    Space::kLocal, true, 0, false, launch.id, block.index);
  }
  if (observer) observer->block_begin(launch, block.index, block.threads);
  block.warps.resize(warps);
  block.alive_warps = warps;
  for (uint32_t i = 0; i < warps; ++i) make_warp(block, i);
}

void Engine::make_warp(Block& block, uint32_t index) {
  const Grid& grid = *block.grid;
  const Launch& launch = grid.launch;
  const Kernel& kernel = *grid.kernel;
  WarpState& warp = block.warps[index];
  const uint64_t warp_bytes = kernel.frame_bytes + kSpecialBytes * uint32_t(Special::kCount);
  warp.block = &block;
  warp.index = index;
  const uint32_t threads = std::min<uint32_t>(block.threads - index * kLanes, kLanes);
  warp.existing = threads == kLanes ? ~0u : (1u << threads) - 1;
  warp.registers = block.registers + warp_bytes * index;
  warp.frame_bytes = kernel.frame_bytes;
  warp.specials = warp.registers + kernel.frame_bytes;
  warp.local = block.local + uint64_t(kernel.local_bytes) * kLanes * index;
  warp.priority = fresh_priority(launch.rank);
  warp.splits.emplace_back();
  warp.splits[0].lanes = warp.existing;
  warp.splits[0].code = &kernel.codes.front();
  const auto fill = [&](Special special, auto of_lane) {
    auto* const to = reinterpret_cast<uint32_t*>(warp.specials + uint32_t(special) * kSpecialBytes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) to[lane] = of_lane(lane);
  };
  const auto all = [&](Special special, uint32_t value) { fill(special, [&](uint32_t) { return value; }); };
  const auto dimensions = [&](Special first, auto of_dimension) {
    for (int d = 0; d < 3; ++d) all(Special(int(first) + d), of_dimension(d));
  };
  const auto thread = [&](uint32_t lane) { return index * kLanes + lane; };
  fill(Special::kTidX, [&](uint32_t lane) { return thread(lane) % launch.block[0]; });
  fill(Special::kTidY, [&](uint32_t lane) { return thread(lane) / launch.block[0] % launch.block[1]; });
  fill(Special::kTidZ, [&](uint32_t lane) { return thread(lane) / launch.block[0] / launch.block[1]; });
  dimensions(Special::kNtidX, [&](int d) { return launch.block[d]; });
  dimensions(Special::kCtaidX, [&](int d) { return block.coordinates[d]; });
  dimensions(Special::kNctaidX, [&](int d) { return launch.grid[d]; });
  dimensions(Special::kClusteridX, [&](int d) { return block.coordinates[d] / launch.cluster[d]; });
  dimensions(Special::kNclusteridX, [&](int d) { return launch.grid[d] / launch.cluster[d]; });
  dimensions(Special::kClusterCtaidX, [&](int d) { return block.coordinates[d] % launch.cluster[d]; });
  dimensions(Special::kClusterNctaidX, [&](int d) { return launch.cluster[d]; });
  all(Special::kClusterCtarank, block.in_cluster);
  all(Special::kClusterNctarank, launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
  all(Special::kIsExplicitCluster, launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1);
  fill(Special::kLaneId, [](uint32_t lane) { return lane; });
  all(Special::kWarpId, index);
  all(Special::kNwarpId, uint32_t(block.warps.size()));
  all(Special::kSmId, uint32_t(block.multiprocessor));
  all(Special::kNsmId, uint32_t(device.multiprocessors));
  all(Special::kGridId, uint32_t(launch.id));
  fill(Special::kLanemaskEq, [](uint32_t lane) { return 1u << lane; });
  fill(Special::kLanemaskLt, [](uint32_t lane) { return (1u << lane) - 1; });
  fill(Special::kLanemaskLe, [](uint32_t lane) { return 1u << lane | ((1u << lane) - 1); });
  fill(Special::kLanemaskGt, [](uint32_t lane) { return ~(1u << lane | ((1u << lane) - 1)); });
  fill(Special::kLanemaskGe, [](uint32_t lane) { return ~((1u << lane) - 1); });
  all(Special::kDynamicSmemSize, launch.shared_bytes - kernel.static_shared);
  all(Special::kTotalSmemSize, launch.shared_bytes);
  all(Special::kReservedSmemOffset1, kReservedSharedOffset);
  const auto workspace = reinterpret_cast<uint64_t>(grid.workspace.get());
  all(Special::kEnvreg0, 0);
  all(Special::kEnvreg1, uint32_t(workspace >> 32));
  all(Special::kEnvreg2, uint32_t(workspace));
}

uint64_t Engine::fresh_priority(int rank) {
  if (!choice_.by_priority) return 0;
  const uint64_t of_rank = choice_.rank_priority.empty() ? 0 : choice_.rank_priority[size_t(rank)];
  return of_rank << 48 | (1000 + random_() % (1ull << 40));
}

void Engine::drop_block(Block& block) {
  const Kernel& kernel = *block.grid->kernel;
  const uint64_t warps = block.warps.size();
  const uint64_t warp_bytes = kernel.frame_bytes + kSpecialBytes * uint32_t(Special::kCount);
  pool_.give_back(block.registers, warp_bytes * warps);
  if (block.local) pool_.give_back(block.local, uint64_t(kernel.local_bytes) * kLanes * warps);
  if (block.shared_region) memory.remove(block.shared_region);
  if (block.reserved_region) memory.remove(block.reserved_region);
  if (block.local_region) memory.remove(block.local_region);
  block.warps.clear();
}

void Engine::trigger(Block& block) {
  Grid& grid = *block.grid;
  if (block.has_triggered) return;
  block.has_triggered = true;
  const Launch& launch = grid.launch;
  if (++grid.triggered_blocks < grid.clusters * launch.cluster[0] * launch.cluster[1] * launch.cluster[2]) return;
  ++progress;
  ++effects;
  early_begins += block.alive_warps > 0;
  if (grid.on_trigger) grid.on_trigger();
}

bool Engine::is_running(uint64_t launch) const {
  return std::any_of(running_.begin(), running_.end(), [&](const Running& running) { return running.grid->launch.id == launch; });
}

void Engine::wake_dependents(uint64_t launch) {
  for (const Running& running : running_) {
    if (running.grid->launch.prerequisite != launch) continue;
    for (const auto& cluster : running.grid->resident) {
      for (const auto& block : cluster->blocks) {
        for (WarpState& warp : block->warps) {
          bool woken = false;
          for (Split& split : warp.splits) {
            if (split.wait != Wait::kPrerequisite) continue;
            split.wait = Wait::kNone;
            woken = true;
          }
          if (woken) wake(warp);
        }
      }
    }
  }
}

void Engine::end_block(Block& block) {
  Cluster& cluster = *block.cluster;
  Grid& grid = *cluster.grid;
  ++progress;
  ++effects;
  trigger(block);
  if (observer) observer->block_end(grid.launch, block.index);
  claim(grid, block.multiprocessor, -1);
  dispatchable_ = true;
  if (--cluster.alive_blocks > 0) return;  // peers of the cluster may still reach its shared memory
  while (!copies_.empty()) run_copies(true);
  for (auto& each : cluster.blocks) drop_block(*each);
  shared_pool_.give_back(cluster.shared, uint64_t(kSharedStride) * cluster.blocks.size());
  std::erase_if(grid.resident, [&](const auto& resident) { return resident.get() == &cluster; });
  if (++grid.finished_clusters < grid.clusters || store_buffers.holds(grid.launch.id)) return;
  end_launch(grid);
}

// Kernels whose threads have ended do so when all their stores have taken effect.
void Engine::end_drained() {
  for (size_t i = 0; i < running_.size();) {
    Grid& grid = *running_[i].grid;
    if (!grid.finished() || store_buffers.holds(grid.launch.id)) {
      ++i;
      continue;
    }
    end_launch(grid);
    i = 0;
  }
}

void Engine::end_launch(Grid& grid) {
  ++progress;
  ++effects;
  if (observer) observer->launch_end(grid.launch);
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const Running& running) { return running.grid.get() == &grid; });
  const Running over = std::move(*found);
  running_.erase(found);
  wake_dependents(over.grid->launch.id);
  over.finished();
}

}  // namespace pkb::emulator
