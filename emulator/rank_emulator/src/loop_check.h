// Tells a wait from a long computation where a warp reads the same again and again and its state never recurs: in a wait the
// same few places are read in each turn of the loop, and all that changes from turn to turn are counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "events.h"

namespace pkb::emulator {

struct Op;
struct WarpState;

// Follows a warp from turn to turn of its loop: from one execution of an instruction by a lane, at an address, to the next.
class LoopCheck {
 public:
  static constexpr uint64_t kClockStep = 1 << 20;  // ns

  // `time`: what the warp's clock shows now.
  LoopCheck(const Op* op, int lane, uint64_t address, uint64_t time) : op_(op), address_(address), lane_(lane), time_(time) {}

  // The warp has executed an instruction that found nothing new. True: the loop is known.
  bool came_by(const Op* op, uint32_t lanes, const uint64_t* addresses, const WarpState& warp);
  bool is_known() const { return noted_ == kStates; }
  bool is_wait() const { return is_wait_; }
  // What the warp's clock shows when it is read: a count as well.
  uint64_t read_clock() { return time_ += kClockStep; }

 private:
  static constexpr size_t kStates = 4;
  static constexpr uint32_t kTurns = 24;           // between two states, a multiple of the periods that waits have
  static constexpr uint32_t kLongestTurn = 1 << 20;  // reads, after which the loop is another one
  static constexpr size_t kMostPlaces = 64;        // that each lane of a wait reads

  bool changes_by_counts() const;

  const Op* op_;
  uint64_t address_;
  int lane_;
  uint64_t time_;
  uint32_t turns_ = 0, reads_ = 0;
  bool is_wait_ = false;
  size_t noted_ = 0;
  std::array<uint64_t, kStates> states_{};  // digests
};

}  // namespace pkb::emulator
