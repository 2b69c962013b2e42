// The heap of a rank's GPU that kernels allocate from (malloc, free, new, delete).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "memory.h"

namespace pkb::emulator {

// Addresses are the emulator's own.
class DeviceHeap {
 public:
  DeviceHeap(Memory& memory, int rank) : memory_(memory), rank_(rank) {}

  uint64_t limit() const { return limit_; }
  // Before the first launch of a kernel that allocates or frees; false: too late.
  bool set_limit(uint64_t bytes);
  // Fixes the limit.
  void open();
  // Whether an address lies in the heap, allocated or not.
  bool holds(uint64_t address) const;

  // An address, or 0: no free block is large enough. `alignment` is a power of two.
  uint64_t allocate(uint64_t bytes, uint64_t alignment);
  // Size of the allocation that begins at an address; -1: none does.
  int64_t size_of(uint64_t address) const;
  // Frees an allocation. `by`: the place of the call, for messages about later uses.
  void release(uint64_t address, const std::string& by);

 private:
  struct Allocation {
    uint64_t block;  // where it begins with its header
    uint64_t block_bytes, bytes, region;
  };

  Memory& memory_;
  const int rank_;
  uint64_t limit_ = 8 << 20;  // as the documentation has it
  Mapping bytes_;
  std::map<uint64_t, uint64_t> free_;           // bytes of free blocks, by address; neighbours are one
  std::map<uint64_t, Allocation> allocations_;  // by address
  std::map<uint64_t, uint64_t> freed_;          // regions that name freed memory, by address
  uint64_t next_ = 0;                           // where the search begins, so that freed memory is not used again at once
};

}  // namespace pkb::emulator
