#include "engine.h"

#include <algorithm>
#include <map>

#include "executor.h"

namespace pkb::emulator {
namespace {

constexpr uint64_t kStuckSteps = 30'000'000;
constexpr uint32_t kSkippedRounds = 16;   // after which a warp that polls runs although nothing has changed
constexpr uint32_t kMostPicks = 2000;     // of one warp in a row, by priority

}  // namespace

Engine::Engine(const Device& device, int ranks)
    : device(device), multiprocessors_(size_t(ranks), std::vector<Multiprocessor>(size_t(device.multiprocessors))), executor_(std::make_unique<Executor>(*this)) {}

Engine::~Engine() { clear(); }

void Engine::choose(const Choice& choice) {
  choice_ = choice;
  random_.seed(choice.seed);
  changes_.clear();
  for (uint32_t i = 0; i < choice.change_points; ++i) changes_.push_back(steps + 1 + random_() % std::max<uint64_t>(choice.change_range, 1));
  std::sort(changes_.rbegin(), changes_.rend());
}

void Engine::start(std::unique_ptr<Grid> grid, std::function<void()> finished) {
  progress_step_ = steps;
  if (observer) observer->launch_begin(grid->launch);
  running_.push_back({std::move(grid), std::move(finished)});
  dispatchable_ = true;
}

bool Engine::idle() const { return running_.empty() && copies_.empty(); }

bool Engine::run_some() {
  run_copies(false);
  dispatch();
  if (ready_.empty() || turns_ == 0) {
    unpark(false);
    turns_ = ready_.size();
  }
  if (ready_.empty() && !copies_.empty()) {
    run_copies(true);
    if (ready_.empty()) unpark(false);
  }
  WarpState* const warp = pick();
  if (!warp) return false;
  if (turns_ > 0) --turns_;
  uint64_t budget = choice_.by_priority ? 4000 : choice_.quantum;
  if (choice_.by_priority && !changes_.empty() && changes_.back() > steps) budget = std::min(budget, changes_.back() - steps);
  executor_->run(*warp, budget);
  executor_->warp = nullptr;
  if (choice_.by_priority && !changes_.empty() && steps >= changes_.back()) {
    warp->priority = changes_.size();  // below all that were drawn
    changes_.pop_back();
  }
  if (progress != last_progress_) {
    last_progress_ = progress;
    progress_step_ = steps;
  }
  settle(*warp);
  return true;
}

bool Engine::stuck() { return steps - progress_step_ > kStuckSteps; }

WarpState* Engine::pick() {
  if (ready_.empty()) return nullptr;
  auto found = ready_.begin();
  if (choice_.by_priority) {
    found = std::max_element(ready_.begin(), ready_.end(), [](const WarpState* a, const WarpState* b) { return a->priority < b->priority; });
    picks_ = *found == last_picked_ ? picks_ + 1 : 0;
    last_picked_ = *found;
    if (picks_ > kMostPicks) {  // it may wait for others in a way that is not seen
      (*found)->priority = 0;
      picks_ = 0;
    }
  }
  WarpState* const warp = *found;
  ready_.erase(found);
  warp->queue = WarpState::Queue::kNone;
  return warp;
}

void Engine::queue(WarpState& warp) {
  if (warp.queue == WarpState::Queue::kReady) return;
  if (warp.queue == WarpState::Queue::kParked) std::erase(parked_, &warp);
  warp.queue = WarpState::Queue::kReady;
  ready_.push_back(&warp);
}

void Engine::wake(WarpState& warp) {
  if (executor_->warp != &warp) queue(warp);
}

void Engine::settle(WarpState& warp) {
  if (warp.alive() == 0) {
    if (warp.block->alive_warps == 0) end_block(*warp.block);
    return;
  }
  if (warp.queue == WarpState::Queue::kReady) return;
  bool polls = false;
  for (const Split& split : warp.splits) {
    if (Executor::runnable(split)) return queue(warp);
    polls |= split.wait == Wait::kPoll;
  }
  if (polls) {
    warp.queue = WarpState::Queue::kParked;
    parked_.push_back(&warp);
  }
}

bool Engine::unpark(bool forced) {
  bool any = false;
  for (size_t i = 0; i < parked_.size();) {
    WarpState& warp = *parked_[i];
    bool runs = false;
    for (Split& split : warp.splits) {
      if (split.wait != Wait::kPoll) continue;
      const bool changed = Executor::changed(split);
      if (changed || forced || (!ready_.empty() && ++split.skipped > kSkippedRounds)) {
        split.wait = Wait::kNone;
        if (changed) split.poll_pc = -1;
        runs = true;
      }
    }
    if (!runs) {
      ++i;
      continue;
    }
    any = true;
    parked_.erase(parked_.begin() + long(i));
    warp.queue = WarpState::Queue::kReady;
    ready_.push_back(&warp);
  }
  return any;
}

bool Engine::run_parked() { return unpark(true); }

void Engine::defer(std::function<void()> copy) { copies_.push_back(std::move(copy)); }

void Engine::run_copies(bool all) {
  if (copies_.empty()) return;
  if (!choice_.delays_copies) {
    while (!copies_.empty()) {
      const auto copy = std::move(copies_.front());
      copies_.pop_front();
      copy();
    }
    return;
  }
  if (!all && random_() % 8) return;
  const size_t index = random_() % copies_.size();
  const auto copy = std::move(copies_[index]);
  copies_.erase(copies_.begin() + long(index));
  copy();
}

// ---- blocks ----

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
  const uint32_t warps = (block.threads + kLanes - 1) / kLanes;
  const uint64_t warp_bytes = grid.kernel->frame_bytes + kSpecialBytes * uint32_t(Special::kCount), local_bytes = uint64_t(grid.kernel->local_bytes) * kLanes * warps;
  block.registers = pool_.take(warp_bytes * warps);
  std::memset(block.registers, 0, warp_bytes * warps);
  if (local_bytes) {
    block.local = pool_.take(local_bytes);
    std::memset(block.local, 0xff, local_bytes);
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
  if (block.local_region) memory.remove(block.local_region);
  block.warps.clear();
}

void Engine::end_block(Block& block) {
  Cluster& cluster = *block.cluster;
  Grid& grid = *cluster.grid;
  ++progress;
  if (observer) observer->block_end(grid.launch, block.index);
  claim(grid, block.multiprocessor, -1);
  dispatchable_ = true;
  if (--cluster.alive_blocks > 0) return;  // peers of the cluster may still reach its shared memory
  while (!copies_.empty()) run_copies(true);
  for (auto& each : cluster.blocks) drop_block(*each);
  shared_pool_.give_back(cluster.shared, uint64_t(kSharedStride) * cluster.blocks.size());
  std::erase_if(grid.resident, [&](const auto& resident) { return resident.get() == &cluster; });
  if (++grid.finished_clusters < grid.clusters) return;
  if (observer) observer->launch_end(grid.launch);
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const Running& running) { return running.grid.get() == &grid; });
  const Running over = std::move(*found);
  running_.erase(found);
  over.finished();
}

std::string Engine::standing() const {
  static constexpr const char* kWhy[] = {"runs", "polls", "waits at a barrier", "waits at barrier.cluster", "waits for lanes of its warp", "waits for copies"};
  std::map<std::string, int> places;
  for (const Running& running : running_) {
    const Grid& grid = *running.grid;
    const std::string kernel = "rank " + std::to_string(grid.launch.rank) + ", kernel " + grid.launch.kernel;
    if (grid.next_cluster < grid.clusters) {
      const uint32_t blocks = grid.launch.cluster[0] * grid.launch.cluster[1] * grid.launch.cluster[2];
      places[kernel + ": blocks that are not resident: " + std::to_string((grid.clusters - grid.next_cluster) * blocks)] = 0;
    }
    for (const auto& cluster : grid.resident) {
      for (const auto& block : cluster->blocks) {
        for (const WarpState& warp : block->warps) {
          for (const Split& split : warp.splits) {
            const int pc = split.wait == Wait::kPoll ? std::max(split.poll_pc, 0) : split.pc;
            const Op& op = split.code->ops[size_t(pc)];
            std::string text = kernel + ", " + op.name + (op.source ? " at " + place_of(op.source->line) : "") + ": " + kWhy[int(split.wait)];
            if (split.wait == Wait::kPoll && !split.watched.empty()) text += " " + memory.describe(split.watched[0].address);
            ++places[text];
          }
        }
      }
    }
  }
  std::string text;
  int lines = 0;
  for (const auto& [place, count] : places) {
    if (++lines > 20) break;
    text += "\n  " + place + (count > 1 ? " (" + std::to_string(count) + " warps)" : "");
  }
  return text;
}

void Engine::clear() {
  ready_.clear();
  parked_.clear();
  copies_.clear();
  for (Running& running : running_) {
    for (auto& cluster : running.grid->resident) {
      for (auto& block : cluster->blocks) drop_block(*block);
      shared_pool_.give_back(cluster->shared, uint64_t(kSharedStride) * cluster->blocks.size());
    }
  }
  running_.clear();
  for (auto& rank : multiprocessors_) std::fill(rank.begin(), rank.end(), Multiprocessor{});
}

}  // namespace pkb::emulator
