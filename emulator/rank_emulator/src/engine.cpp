#include "engine.h"

#include <algorithm>
#include <map>

#include "executor.h"

namespace pkb::emulator {
namespace {

constexpr uint32_t kSkippedRounds = 16;   // after which a warp that polls runs although nothing has changed
constexpr uint32_t kMostPicks = 2000;     // of one warp in a row, by priority

}  // namespace

Engine::Engine(const Device& device, int ranks)
    : device(device), multiprocessors_(size_t(ranks), std::vector<Multiprocessor>(size_t(device.multiprocessors))), executor_(std::make_unique<Executor>(*this)) {
  for (int rank = 0; rank < ranks; ++rank) heaps_.emplace_back(memory, rank);
  store_buffers.admit = [this](uint64_t address, uint64_t bytes) {
    memory.set_written(address, bytes);
    return memory.find(address, bytes) != nullptr;
  };
  late_puts.admit = store_buffers.admit;
}

Engine::~Engine() { clear(); }

std::string Engine::describe_function(uint64_t address, int rank) const {
  if (address == 0) return "it is null (of an object: a pure virtual function, or none that was constructed)";
  const auto found = functions_.find(address);
  if (found == functions_.end()) return "there is no function at this address (" + memory.describe(address) + ")";
  const auto& [owner, name] = found->second;
  if (owner != rank) return "the function '" + name + "' is that of rank " + std::to_string(owner) + "; each GPU has function pointers and virtual tables of its own";
  return "the function '" + name + "' cannot be called by this kernel: it is a kernel, of another library, or not defined";
}

void Engine::choose(const Choice& choice) {
  choice_ = choice;
  random_.seed(choice.seed);
  holds_next_reader_ = false;
  store_buffers.choose(choice.late_stores, ~choice.seed);
  late_puts.choose(choice.delays_copies, choice.seed + 1);
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
  forget_removed();
  run_copies(false);
  if (store_buffers.is_on()) {
    took_effect(store_buffers.run(steps));
    end_drained();
  }
  if (!late_puts.empty()) took_effect(late_puts.run(steps));
  dispatch();
  if (ready_.empty() || turns_ == 0) {
    unpark(false);
    turns_ = ready_.size();
  }
  if (ready_.empty() && !copies_.empty()) {
    run_copies(true);
    if (ready_.empty()) unpark(false);
  }
  while (ready_.empty() && !store_buffers.empty()) {
    took_effect(store_buffers.run_one());
    end_drained();
    unpark(false);
  }
  WarpState* const warp = pick();
  if (!warp) return false;
  if (turns_ > 0) --turns_;
  uint64_t budget = choice_.by_priority ? 4000 : choice_.quantum;
  if (choice_.by_priority && !changes_.empty() && changes_.back() > steps) budget = std::min(budget, changes_.back() - steps);
  const uint64_t begin = steps;
  slice_share_ = ready_.size() + 1;
  executor_->run(*warp, budget);
  executor_->warp = nullptr;
  warp->quiet_steps += steps - begin;
  now_ns_ = now_ns();
  slice_begin_ = steps - (steps - slice_begin_) % slice_share_;
  if (choice_.by_priority && !changes_.empty() && steps >= changes_.back()) {
    warp->priority = changes_.size();  // below all that were drawn
    changes_.pop_back();
  }
  if (progress != last_progress_) {
    last_progress_ = progress;
    progress_step_ = steps;
    watch_.begin = 0;
  } else if (steps - progress_step_ > kUnwatchedSteps) {
    watch(*warp);
  }
  settle(*warp);
  return true;
}

bool Engine::signalled(WarpState& warp) {
  if (!choice_.preempts) return false;
  if (!store_buffers.empty() && random_() % 2) warp.priority = choice_.change_points + random_() % 100;  // as in `tested`
  // Now and then it goes on to its own test of a flag and is held behind it, while the others get two rounds ahead.
  if (choice_.holds_readers && random_() % 2) {
    holds_next_reader_ = true;
    return false;
  }
  turns_ = 0;
  return true;
}

bool Engine::tested(WarpState& warp) {
  if (!choice_.holds_readers || (random_() % choice_.holds_readers && !holds_next_reader_)) return false;
  if (!choice_.rank_priority.empty()) {
    const uint64_t most = *std::max_element(choice_.rank_priority.begin(), choice_.rank_priority.end());
    if (choice_.rank_priority[size_t(warp.block->grid->launch.rank)] == most) return false;
  }
  holds_next_reader_ = false;
  warp.priority = choice_.change_points + random_() % 100;  // below all that were drawn
  turns_ = 0;
  return true;
}

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

// What warps have observed may lie in memory that is no more.
void Engine::forget_removed() {
  if (removals_ == memory.removals()) return;
  removals_ = memory.removals();
  for (Running& running : running_) {
    for (const auto& cluster : running.grid->resident) {
      for (const auto& block : cluster->blocks) {
        for (WarpState& warp : block->warps) warp.found_new();
      }
    }
  }
  unpark(true);  // nothing wakes them any more
}

bool Engine::unpark(bool forced) {
  bool any = false;
  for (size_t i = 0; i < parked_.size();) {
    WarpState& warp = *parked_[i];
    const Observed* const changed = warp.observations.changed();
    if (!changed && !forced && (ready_.empty() || ++warp.skipped <= kSkippedRounds)) {
      ++i;
      continue;
    }
    if (changed) {  // by whomever, as the host may write, too; what its own block hands on is not news
      uint32_t offset;
      effects += block_of(*warp.block->cluster, changed->address, offset) == nullptr;
      warp.repeats = 0;
    }
    for (Split& split : warp.splits) {
      if (split.wait == Wait::kPoll) split.wait = Wait::kNone;
    }
    warp.skipped = 0;
    any = true;
    parked_.erase(parked_.begin() + long(i));
    warp.queue = WarpState::Queue::kReady;
    ready_.push_back(&warp);
  }
  return any;
}

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

void Engine::clear() {
  ready_.clear();
  parked_.clear();
  copies_.clear();
  store_buffers.clear();
  late_puts.clear();
  for (Running& running : running_) {
    for (auto& cluster : running.grid->resident) {
      for (auto& block : cluster->blocks) drop_block(*block);
      shared_pool_.give_back(cluster->shared, uint64_t(kSharedStride) * cluster->blocks.size());
    }
  }
  running_.clear();
  end_standstill();
  for (auto& rank : multiprocessors_) std::fill(rank.begin(), rank.end(), Multiprocessor{});
}

}  // namespace pkb::emulator
