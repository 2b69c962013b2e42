// Non-blocking puts and gets of a library whose header marks them (LibraryMark): their stores take effect late, at the latest
// when the library says that they are complete or delivered. Nobody sees them before, not even the thread that stores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "store_buffers.h"

namespace pkb::emulator {

class LatePuts {
 public:
  void choose(bool is_on, uint64_t seed);
  bool empty() const { return stores_.empty(); }
  // Whether what an operation that begins now stores is late.
  bool draw() { return is_on_ && random_() % 2; }

  // An instruction's stores, whose bytes lie at `from.addresses`.
  void add(int rank, bool is_get, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes, const LaneBytes& from, uint64_t step);
  // A rank's puts, and its gets where `gets` says so, take effect. True if memory has changed, here and below.
  bool complete(int rank, bool gets);
  // Those whose time has come.
  bool run(uint64_t step);
  // The oldest, whenever its time would be: nobody else can go on.
  bool run_one() { return !stores_.empty() && perform(0); }
  void clear() { stores_.clear(); }

  // Whether memory may still be written, which it then is.
  std::function<bool(uint64_t address, uint64_t bytes)> admit;

 private:
  struct Store {
    int rank;
    bool is_get;
    uint64_t due;  // step
    uint32_t lanes, bytes;
    LaneBytes content;  // addresses: where the bytes go
  };

  bool perform(size_t index);
  template <class IsDue>
  bool perform_all(const IsDue& is_due);

  std::vector<std::unique_ptr<Store>> stores_;
  bool is_on_ = false;
  std::mt19937_64 random_;
};

}  // namespace pkb::emulator
