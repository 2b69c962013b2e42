// Sizes and offsets that are multiples of an alignment.
#pragma once

#include <cstdint>

namespace pkb::emulator {

inline uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace pkb::emulator
