// Barriers of blocks and clusters, and fences.
#include "executor.h"

namespace pkb::emulator {
namespace {

enum Reduction { kNoReduction, kAnd, kOr, kPopc };

uint32_t expected_threads(const Block& block, const Barrier& barrier) {
  return barrier.expected ? barrier.expected : block.alive_warps * kLanes;
}

void wake_waiting(Engine& engine, Block& block, uint32_t barrier) {
  for (WarpState& warp : block.warps) {
    bool woken = false;
    for (Split& split : warp.splits) {
      if (split.wait != Wait::kBarrier || split.barrier != barrier) continue;
      split.wait = Wait::kNone;
      woken = true;
    }
    if (woken) engine.wake(warp);
  }
}

void complete_barrier(Engine& engine, Block& block, uint32_t index) {
  Barrier& barrier = block.barriers[index];
  barrier.result_and = barrier.predicates_and;
  barrier.result_or = barrier.predicates_or;
  barrier.result_count = barrier.predicates_count;
  barrier.predicates_and = 1;
  barrier.predicates_or = barrier.predicates_count = 0;
  barrier.arrived = barrier.expected = 0;
  ++barrier.generation;
  ++engine.progress;
  wake_waiting(engine, block, index);
}

// Threads that this arrival counts for: lanes, and with the lowest of them those that the warp lacks.
uint32_t weight(const WarpState& warp, uint32_t lanes) {
  const uint32_t alive = warp.alive();
  const bool lowest = lanes & alive & (0u - alive);
  return uint32_t(__builtin_popcount(lanes)) + (lowest ? kLanes - uint32_t(__builtin_popcount(alive)) : 0);
}

// variant: bit 0: waits; bits 1 and 2: reduction. values: result of a reduction, barrier, threads if given, predicate.
Step block_barrier(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const bool waits = detail.variant & 1;
  const auto reduction = Reduction(detail.variant >> 1);
  const size_t first = reduction ? 1 : 0, operands = detail.values.size() - first - (reduction ? 1 : 0);
  const int lane = __builtin_ctz(lanes);
  const auto index = uint32_t(x.value(detail.values[first], lane));
  if (index >= kBarriers) x.fail(Outcome::kTrap, op, uint32_t(lane), "barrier " + std::to_string(index) + ", there are 16");
  Barrier& barrier = x.block->barriers[index];
  Split& split = *x.split;
  if (!split.arrived) {
    split.generation = barrier.generation;
    if (operands > 1) {
      const auto threads = uint32_t(x.value(detail.values[first + 1], lane));
      if (threads == 0 || threads % kLanes) x.fail(Outcome::kTrap, op, uint32_t(lane), std::to_string(threads) + " threads are no whole warps");
      if (barrier.arrived && barrier.expected != threads) {
        x.fail(Outcome::kTrap, op, uint32_t(lane), "barrier " + std::to_string(index) + " was entered for " + std::to_string(barrier.expected) + " threads, now for " + std::to_string(threads));
      }
      barrier.expected = threads;
    }
    if (reduction) {
      const uint32_t predicate = x.mask(detail.values.back());
      if ((predicate & lanes) != lanes) barrier.predicates_and = 0;
      if (predicate & lanes) barrier.predicates_or = 1;
      barrier.predicates_count += uint32_t(__builtin_popcount(predicate & lanes));
    }
    x.publish(Scope::kCta);
    barrier.arrived += weight(*x.warp, lanes);
    ++x.engine.progress;
    if (x.engine.observer) x.engine.observer->barrier_arrive(x.seen(op, lanes), index, split.generation);
    if (barrier.arrived >= expected_threads(*x.block, barrier)) complete_barrier(x.engine, *x.block, index);
    if (!waits) return Step::kNext;
    if (barrier.generation == split.generation) {
      split.arrived = true;
      split.wait = Wait::kBarrier;
      split.barrier = index;
      return Step::kBlocked;
    }
  }
  split.arrived = false;
  if (x.engine.observer) x.engine.observer->barrier_leave(x.seen(op, lanes), index, split.generation);
  if (reduction == kPopc) each_lane(lanes, [&](int i) { x.set(detail.values[0], i, barrier.result_count); });
  if (reduction == kAnd) x.set_mask(detail.values[0], 0u - barrier.result_and, lanes);
  if (reduction == kOr) x.set_mask(detail.values[0], 0u - barrier.result_or, lanes);
  return Step::kNext;
}

uint32_t alive_threads(const Cluster& cluster) {
  uint32_t threads = 0;
  for (const auto& block : cluster.blocks) {
    for (const WarpState& warp : block->warps) threads += uint32_t(__builtin_popcount(warp.alive()));
  }
  return threads;
}

void complete_cluster(Engine& engine, Cluster& cluster) {
  cluster.arrived = 0;
  ++cluster.generation;
  ++engine.progress;
  for (const auto& block : cluster.blocks) {
    for (WarpState& warp : block->warps) {
      bool woken = false;
      for (Split& split : warp.splits) {
        if (split.wait != Wait::kCluster) continue;
        split.wait = Wait::kNone;
        woken = true;
      }
      if (woken) engine.wake(warp);
    }
  }
}

// variant: 1: .relaxed
Step cluster_arrive(Executor& x, const Op& op, uint32_t lanes) {
  Cluster& cluster = *x.block->cluster;
  if (op.detail->variant == 0) x.publish(Scope::kCluster);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    x.warp->cluster_generations[__builtin_ctz(rest)] = cluster.generation;
  }
  cluster.arrived += uint32_t(__builtin_popcount(lanes));
  if (x.engine.observer) x.engine.observer->cluster_arrive(x.seen(op, lanes), op.detail->variant == 0, cluster.generation);
  if (cluster.arrived >= alive_threads(cluster)) complete_cluster(x.engine, cluster);
  return Step::kNext;
}

Step cluster_wait(Executor& x, const Op& op, uint32_t lanes) {
  const uint64_t arrived = x.warp->cluster_generations[__builtin_ctz(lanes)];
  if (x.block->cluster->generation == arrived) {
    x.split->wait = Wait::kCluster;
    return Step::kBlocked;
  }
  if (x.engine.observer) x.engine.observer->cluster_leave(x.seen(op, lanes), true, arrived);
  return Step::kNext;
}

// variant: 0: memory fence, else ProxyFence
Step fence(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  if (ProxyFence(detail.variant) != ProxyFence::kAsyncShared) x.publish(detail.variant ? Scope::kSys : detail.scope);
  if (!x.engine.observer) return Step::kNext;
  if (detail.variant) {
    x.engine.observer->proxy_fence(x.seen(op, lanes), ProxyFence(detail.variant));
  } else {
    x.engine.observer->fence(x.seen(op, lanes), detail.order, detail.scope);
  }
  return Step::kNext;
}

Step mbarrier_init_fence(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) x.engine.observer->mbarrier_init_fence(x.seen(op, lanes));
  return Step::kNext;
}

ProxyFence proxy_of(const Instruction& instruction) {
  if (instruction.has("alias")) return ProxyFence::kAlias;
  for (const auto part : instruction.parts) {
    if (part.starts_with("tensormap")) return ProxyFence::kTensorMap;
  }
  if (instruction.has("global")) return ProxyFence::kAsyncGlobal;
  return instruction.has("shared::cta") || instruction.has("shared::cluster") ? ProxyFence::kAsyncShared : ProxyFence::kAsync;
}

Handler find_fence(const Instruction& instruction, Detail& detail) {
  if (instruction.has("proxy")) {
    detail.variant = int(proxy_of(instruction));
    // fence.proxy.tensormap::generic.acquire.gpu is a fence with an order besides.
    return fence;
  }
  if (instruction.has("mbarrier_init")) return mbarrier_init_fence;
  detail.variant = 0;
  if (instruction.parts[0] == "membar") {
    detail.order = Order::kSequential;
    detail.scope = instruction.has("cta") ? Scope::kCta : instruction.has("gl") ? Scope::kGpu : Scope::kSys;
  } else if (detail.order == Order::kWeak) {
    detail.order = Order::kAcquireRelease;
  }
  return fence;
}

}  // namespace

void recheck_barriers(Engine& engine, Block& block) {
  for (uint32_t i = 0; i < kBarriers; ++i) {
    Barrier& barrier = block.barriers[i];
    if (barrier.arrived && barrier.arrived >= expected_threads(block, barrier)) complete_barrier(engine, block, i);
  }
  Cluster& cluster = *block.cluster;
  if (cluster.arrived && cluster.arrived >= alive_threads(cluster)) complete_cluster(engine, cluster);
}

Handler find_barrier_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if (name == "membar" || name == "fence") return find_fence(instruction, detail);
  if ((name != "bar" && name != "barrier") || instruction.has("warp")) return nullptr;
  if (instruction.has("cluster")) {
    detail.variant = instruction.has("relaxed");
    return instruction.has("arrive") ? cluster_arrive : cluster_wait;
  }
  if (instruction.has("red")) {
    detail.variant = 1 | (instruction.has("popc") ? kPopc : instruction.has("and") ? kAnd : kOr) << 1;
    return block_barrier;
  }
  detail.variant = instruction.has("sync") ? 1 : 0;
  return instruction.has("sync") || instruction.has("arrive") ? block_barrier : nullptr;
}

}  // namespace pkb::emulator
