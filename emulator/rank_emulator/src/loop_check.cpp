#include "loop_check.h"

#include <cstring>

#include "state.h"

namespace pkb::emulator {
namespace {

void append(std::vector<uint32_t>& words, const void* from, size_t bytes) {
  const size_t before = words.size();
  words.resize(before + (bytes + 3) / 4);
  if (bytes) std::memcpy(words.data() + before, from, bytes);
}

}  // namespace

std::vector<uint32_t> state_of(const WarpState& warp) {
  const Block& block = *warp.block;
  const Kernel& kernel = *block.grid->kernel;
  std::vector<uint32_t> words{warp.exited, warp.carry, uint32_t(warp.splits.size())};
  for (const Split& split : warp.splits) {
    const uint64_t code = reinterpret_cast<uint64_t>(split.code);
    for (const uint32_t word : {split.lanes, uint32_t(split.pc), uint32_t(code), uint32_t(code >> 32), split.frame_offset}) words.push_back(word);
  }
  append(words, warp.registers, kernel.frame_bytes);
  append(words, warp.local, size_t(kernel.local_bytes) * kLanes);
  append(words, block.shared, block.shared_bytes);
  return words;
}

bool LoopCheck::came_by(const Op* op, uint32_t lanes, const uint64_t* addresses, const WarpState& warp) {
  if (is_known()) return true;
  const bool is_here = op == op_ && lanes >> lane_ & 1 && (!addresses || addresses[lane_] == address_);
  if (!is_here) {
    if (++reads_ < kLongestTurn) return false;
    op_ = op;
    lane_ = __builtin_ctz(lanes);
    address_ = addresses ? addresses[lane_] : 0;
    states_.clear();
    turns_ = 0;
  }
  reads_ = 0;
  if (turns_++ % kTurns) return false;
  states_.push_back(state_of(warp));
  if (!is_known()) return false;
  is_wait_ = warp.observations.size() <= kMostPlaces * size_t(__builtin_popcount(lanes)) && changes_by_counts();
  return true;
}

bool LoopCheck::changes_by_counts() const {
  const size_t words = states_[0].size();
  for (const auto& state : states_) {
    if (state.size() != words) return false;
  }
  for (size_t i = 0; i < words; ++i) {
    const uint32_t step = states_[1][i] - states_[0][i];
    for (size_t turn = 2; turn < kStates; ++turn) {
      if (states_[turn][i] - states_[turn - 1][i] != step) return false;
    }
  }
  return true;
}

}  // namespace pkb::emulator
