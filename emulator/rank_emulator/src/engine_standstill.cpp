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
constexpr uint64_t kMaxSteps = 4'000'000;   // of loops that count, whose state never recurs

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
  if (still_.rounds++ == 0) {
    still_.begin = steps;
    still_.clock_reads = clock_reads;
  }
  const int rounds = still_.rounds;
  still_.hosts_ran |= hosts_ran;
  const bool clocks = clock_reads != still_.clock_reads;
  if (clocks || still_.hosts_ran) {
    if (rounds > (still_.hosts_ran ? kRoundsOfHosts : kRoundsOfClocks)) return false;
  } else {
    if (parked_.empty() && rounds > kRoundsInTime) return false;
    uint64_t state = state_digest();
    still_.recurrences += !still_.states.insert(state).second;
    if (still_.recurrences >= kRecurrences) return false;
    if (rounds > kRoundsInTime) patience = 1u << std::min(rounds - kRoundsInTime, 24);  // a state of a loop that counts
  }
  if (steps - still_.begin > kMaxSteps) return false;
  if (rounds > kRoundsInTime) pass_time(1ull << std::min(10 + rounds - kRoundsInTime, kLongestJump));
  forget_removed();
  unpark(true);
  return true;
}

}  // namespace pkb::emulator
