#include "loop_check.h"

#include <cstring>

#include "state.h"

namespace pkb::emulator {
namespace {

// A digest of words that is linear in each of them, modulo a prime: where words grow by the same steps from one state to the
// next, and do not overflow, digests do so, too, and hardly ever otherwise.
class LinearDigest {
 public:
  void add(uint32_t word) {
    factor_ = factor_ * 6364136223846793005ull + 1442695040888963407ull;
    value_ = uint64_t((static_cast<unsigned __int128>(factor_ >> 3) * word + value_) % kPrime);
  }
  void add(const void* from, size_t bytes) {
    const char* at = static_cast<const char*>(from);
    for (uint32_t word; bytes >= 4; at += 4, bytes -= 4) {
      std::memcpy(&word, at, 4);
      add(word);
    }
    uint32_t rest = 0;
    std::memcpy(&rest, at, bytes);
    add(rest);
  }
  uint64_t value() const { return value_; }
  static uint64_t step(uint64_t from, uint64_t to) { return (to + kPrime - from) % kPrime; }

 private:
  static constexpr uint64_t kPrime = (1ull << 61) - 1;

  uint64_t factor_ = 1, value_ = 0;
};

// Of all that says how a warp goes on while memory of others does not change.
uint64_t digest_of(const WarpState& warp) {
  const Block& block = *warp.block;
  const Kernel& kernel = *block.grid->kernel;
  LinearDigest digest;
  digest.add(warp.exited);
  digest.add(warp.carry);
  for (const Split& split : warp.splits) {
    digest.add(split.lanes);
    digest.add(uint32_t(split.pc));
    digest.add(&split.code, sizeof split.code);
    digest.add(split.frame_offset);
  }
  digest.add(warp.registers, kernel.frame_bytes);
  digest.add(warp.local, size_t(kernel.local_bytes) * kLanes);
  digest.add(block.shared, block.shared_bytes);
  return digest.value();
}

}  // namespace

bool LoopCheck::came_by(const Op* op, uint32_t lanes, const uint64_t* addresses, const WarpState& warp) {
  if (is_known()) return true;
  const bool is_here = op == op_ && (lanes >> lane_ & 1) && (!addresses || addresses[lane_] == address_);
  if (!is_here) {
    if (++reads_ < kLongestTurn) return false;
    op_ = op;
    lane_ = __builtin_ctz(lanes);
    address_ = addresses ? addresses[lane_] : 0;
    noted_ = 0;
    turns_ = 0;
  }
  reads_ = 0;
  if (turns_++ % kTurns) return false;
  states_[noted_++] = digest_of(warp);
  if (!is_known()) return false;
  is_wait_ = warp.observations.size() <= kMostPlaces * size_t(__builtin_popcount(lanes)) && changes_by_counts();
  return true;
}

bool LoopCheck::changes_by_counts() const {
  const uint64_t step = LinearDigest::step(states_[0], states_[1]);
  for (size_t turn = 2; turn < kStates; ++turn) {
    if (LinearDigest::step(states_[turn - 1], states_[turn]) != step) return false;
  }
  return true;
}

}  // namespace pkb::emulator
