// Memory of GPUs that host code must not change while it has the turn: it may have found where this process keeps it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "memory.h"

namespace pkb::emulator {

class HostWrites {
 public:
  // Whether a range is looked at; ranges are told apart by where they begin.
  void watch(uint64_t address, uint64_t bytes, bool is_on);
  // Who runs the world has written what stands there now.
  void accept(uint64_t address, uint64_t bytes);
  // Host code has the turn from now on, and has had it: bytes that it has changed count as not written by a GPU.
  void begin();
  void end(Memory& memory);

 private:
  std::map<uint64_t, std::vector<char>> ranges_;  // by address: content when the turn began
};

}  // namespace pkb::emulator
