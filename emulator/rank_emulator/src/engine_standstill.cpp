// What happens when nobody can run: copies, held arrivals and time go on, and only when no wait can end is it a deadlock.
#include <algorithm>
#include <cstring>

#include "engine.h"

namespace pkb::emulator {
namespace {

constexpr int kRoundsInTime = 3;          // before time jumps
constexpr int kLongestJump = 42;          // 2^42 ns are more than an hour: every timeout has passed
constexpr int kRoundsOfClocks = 48;       // after which loops that look at clocks do not end
constexpr int kRoundsOfHosts = 1000;      // after which hosts that query streams and events do not stop to
constexpr int kRecurrences = 3;           // of one state
constexpr uint64_t kMostSteps = 4'000'000;  // after which it is looked whether those that run wait
constexpr uint64_t kLongestRun = 1'000'000'000;  // until that is done again

class Digest {
 public:
  void add(const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    for (; bytes >= 8; at += 8, bytes -= 8) {
      uint64_t word;
      std::memcpy(&word, at, 8);
      add(word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, at, bytes);
    add(rest);
  }
  void add(uint64_t word) { value_ = (value_ ^ word) * 0x9e3779b97f4a7c15ull ^ value_ >> 29; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x51ed270b0f5a4d31ull;
};

void add(Digest& digest, const WarpState& warp, const Kernel& kernel) {
  digest.add(warp.exited);
  digest.add(warp.carry);
  for (const Split& split : warp.splits) {
    digest.add(uint64_t(split.lanes) << 32 | uint32_t(split.pc));
    digest.add(reinterpret_cast<uint64_t>(split.code));
    digest.add(uint64_t(split.wait) << 32 | split.frame_offset);
  }
  digest.add(warp.registers, kernel.frame_bytes);
  digest.add(warp.local, size_t(kernel.local_bytes) * kLanes);
}

}  // namespace

uint64_t Engine::state_digest() const {
  Digest digest;
  for (const Running& running : running_) {
    for (const auto& cluster : running.grid->resident) {
      for (const auto& block : cluster->blocks) {
        for (const WarpState& warp : block->warps) add(digest, warp, *running.grid->kernel);
        if (!block->warps.empty()) digest.add(block->shared, block->shared_bytes);
      }
    }
  }
  return digest.value();
}

void Engine::end_standstill() {
  still_ = {};
  patience = 0;
}

bool Engine::stand_still(bool hosts_ran) {
  if (!late_puts.empty()) {
    took_effect(late_puts.run_one());
    unpark(true);
    return true;
  }
  if (still_.rounds++ == 0) {
    still_.begin = steps;
    still_.clock_reads = clock_reads;
    still_.most_steps = kMostSteps;
    for (WarpState* const warp : parked_) warp->loop_check.reset();
  }
  const int rounds = still_.rounds;
  still_.hosts_ran |= hosts_ran;
  const bool clocks = clock_reads != still_.clock_reads;
  const int most_rounds = still_.hosts_ran ? kRoundsOfHosts : clocks ? kRoundsOfClocks : kRoundsInTime;
  if (parked_.empty() && rounds > most_rounds) return false;
  if (!clocks && !still_.hosts_ran) {
    still_.recurrences += !still_.states.insert(state_digest()).second;
    if (still_.recurrences >= kRecurrences) return false;
  }
  patience = 0;
  if (steps - still_.begin <= still_.most_steps) {
    if (rounds > kRoundsInTime) patience = 1u << std::min(++still_.doublings, 24);  // a loop that counts has an end
  } else if (rounds > most_rounds && !check_loops()) {
    return false;
  }
  if (rounds > kRoundsInTime) pass_time(1ull << std::min(10 + rounds - kRoundsInTime, kLongestJump));
  forget_removed();
  unpark(true);
  return true;
}

// Looks whether all that run wait, which takes some rounds; false: they do, and no wait can end.
bool Engine::check_loops() {
  const auto is_known = [](const WarpState* warp) { return warp->loop_check && warp->loop_check->is_known(); };
  if (!std::all_of(parked_.begin(), parked_.end(), is_known)) {
    for (WarpState* const warp : parked_) {
      if (warp->loop_check) continue;
      for (const Split& split : warp->splits) {
        if (split.wait != Wait::kPoll) continue;
        warp->loop_check = std::make_unique<LoopCheck>(split.polling, split.polling_lane, split.polled, now_ns());
        break;
      }
    }
    return true;
  }
  const auto waits = [](const WarpState* warp) { return warp->loop_check->is_wait(); };
  if (std::all_of(parked_.begin(), parked_.end(), waits)) return false;
  for (WarpState* const warp : parked_) {
    if (!waits(warp)) warp->computes_until = steps + still_.most_steps;
    warp->loop_check.reset();
  }
  still_.begin = steps;
  still_.most_steps = std::min(2 * still_.most_steps, kLongestRun);
  still_.doublings = 0;
  return true;
}

// Notes the state of a warp that has just run, or finds that it is the noted one again. Each watch is twice as long as the
// one before, as loops may be long or begin late.
void Engine::watch(WarpState& warp) {
  if (!watch_.begin) watch_.length = kUnwatchedSteps / 8;
  if (!watch_.begin || steps - watch_.begin > watch_.length) {
    watch_.begin = steps;
    watch_.length *= 2;
    ++watch_.number;
  }
  Digest digest;
  add(digest, warp, *warp.block->grid->kernel);
  if (warp.watch != watch_.number) {
    warp.watch = watch_.number;
    warp.watched_state = digest.value();
    warp.recurs = false;
  } else {
    warp.recurs |= warp.watched_state == digest.value();
  }
}

bool Engine::stuck() const {
  if (!watch_.begin || ready_.size() + parked_.size() == 0) return false;
  const auto recurs = [&](const WarpState* warp) { return warp->watch == watch_.number && warp->recurs; };
  return std::all_of(ready_.begin(), ready_.end(), recurs) && std::all_of(parked_.begin(), parked_.end(), recurs);
}

}  // namespace pkb::emulator
