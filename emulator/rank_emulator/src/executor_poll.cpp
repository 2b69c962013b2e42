// Waits: a warp that reads the same again, and changes nothing that others can see, gives way until memory changes.
//
// That is a matter of the schedule alone: a warp that was not waiting goes on once the others stand still. Whether a wait
// can end at all is decided there (engine_standstill.cpp), by the state of everything.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

constexpr size_t kMaxObserved = 4096;    // a warp that has read more is not waiting
constexpr size_t kLookedAtEach = 16;      // observations, on average for each read, whether memory has changed there
constexpr uint32_t kMaxClockReads = 256;  // in a row, until a warp waits for time to pass

size_t hash_of(const Op* op, int lane, uint64_t address) {
  const uint64_t bits = (address ^ reinterpret_cast<uint64_t>(op) ^ uint64_t(lane) << 56) * 0x9e3779b97f4a7c15ull;
  return size_t(bits >> 32);
}

bool within(uint64_t address, const char* begin, uint64_t bytes) { return address - reinterpret_cast<uint64_t>(begin) < bytes; }

}  // namespace

bool Observations::note(const Op* op, int lane, uint64_t address, uint32_t bytes) {
  Observed now{op, address, {0, 0}, uint8_t(std::min(bytes, 16u)), uint8_t(lane)};
  std::memcpy(now.value, reinterpret_cast<const void*>(address), now.bytes);
  if (table_.size() < 2 * (all_.size() + 1)) {
    table_.assign(std::max<size_t>(64, 2 * table_.size()), 0);
    for (size_t i = 0; i < all_.size(); ++i) {
      size_t slot = hash_of(all_[i].op, all_[i].lane, all_[i].address);
      while (table_[slot & (table_.size() - 1)]) ++slot;
      table_[slot & (table_.size() - 1)] = uint16_t(i + 1);
    }
  }
  for (size_t slot = hash_of(op, lane, address);; ++slot) {
    uint16_t& place = table_[slot & (table_.size() - 1)];
    if (!place) {
      all_.push_back(now);
      place = uint16_t(all_.size());
      return false;
    }
    Observed& known = all_[place - 1u];
    if (known.op != op || known.lane != lane || known.address != address) continue;
    const bool same = known.bytes == now.bytes && std::equal(now.value, now.value + 2, known.value);
    known = now;
    return same;
  }
}

const Observed* Observations::changed() const {
  const auto found = std::find_if(all_.begin(), all_.end(), [](const Observed& observed) {
    return std::memcmp(reinterpret_cast<const void*>(observed.address), observed.value, observed.bytes) != 0;
  });
  return found == all_.end() ? nullptr : &*found;
}

void Observations::refresh() {
  for (Observed& observed : all_) std::memcpy(observed.value, reinterpret_cast<const void*>(observed.address), observed.bytes);
}

void Observations::clear() {
  all_.clear();
  std::fill(table_.begin(), table_.end(), 0);
}

bool Executor::polls(const Op& op, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes) {
  if (engine.steps < warp->computes_until) return false;
  Observations& observations = warp->observations;
  bool repeats = true;
  each_lane(lanes, [&](int lane) { repeats &= observations.note(&op, lane, addresses[lane], bytes); });
  if (!repeats) {
    warp->repeats = warp->clock_reads = 0;
    warp->loop_check.reset();
    if (observations.size() > kMaxObserved) warp->found_new();
    return false;
  }
  if (warp->checked_progress != engine.progress) {
    if (++warp->unchecked_reads <= observations.size() / kLookedAtEach) return false;
    warp->unchecked_reads = 0;
    warp->checked_progress = engine.progress;
    if (observations.changed()) {  // elsewhere: the warp looks there first
      observations.refresh();
      return false;
    }
  }
  if (warp->loop_check) {
    if (!warp->loop_check->came_by(&op, lanes, addresses, *warp)) return false;
  } else if (warp->repeats++ < engine.patience) {
    return false;
  }
  const int lane = __builtin_ctz(lanes);
  split->wait = Wait::kPoll;
  split->polling = &op;
  split->polled = addresses[lane];
  split->polled_bytes = std::min(bytes, 16u);
  split->polling_lane = lane;
  return true;
}

uint64_t Executor::read_clock(const Op& op) {
  if (warp->loop_check) {
    engine.pass_time(LoopCheck::kClockStep);
    polls_clock(op);
    return warp->loop_check->read_clock();
  }
  polls_clock(op);
  return engine.now_ns();
}

void Executor::polls_clock(const Op& op) {
  ++engine.clock_reads;
  if (engine.steps < warp->computes_until) return;
  if (warp->loop_check) {
    if (!warp->loop_check->came_by(&op, split->lanes, nullptr, *warp)) return;
  } else if (++warp->clock_reads <= std::max(kMaxClockReads, engine.patience)) {
    return;
  }
  warp->clock_reads = 0;
  split->wait = Wait::kPoll;
  split->polling = &op;
  split->polling_lane = __builtin_ctz(split->lanes);
  split->polled = 0;
}

uint32_t Executor::outside(uint32_t lanes, const uint64_t (&addresses)[kLanes]) const {
  const Cluster& cluster = *block->cluster;
  const uint64_t local_bytes = uint64_t(grid->kernel->local_bytes) * kLanes * block->warps.size();
  uint32_t found = lanes;
  each_lane(lanes, [&](int lane) {
    const uint64_t address = addresses[lane];
    if (within(address, cluster.shared, kSharedStride * cluster.blocks.size()) || within(address, block->local, local_bytes)) found &= ~(1u << lane);
  });
  return found;
}

void Executor::wrote_at(uint32_t lanes, const uint64_t (&addresses)[kLanes]) {
  if (outside(lanes, addresses)) {
    wrote_outside();
  } else {
    wrote();
  }
}

}  // namespace pkb::emulator
