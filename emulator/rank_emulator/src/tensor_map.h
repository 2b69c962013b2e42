// Tensor maps as this emulator writes them into the 128 opaque bytes of CUtensorMap.
#pragma once

#include <cstdint>

namespace pkb::emulator {

struct TensorMap {
  static constexpr uint64_t kMagic = 0x70616d726f736e74ull;
  uint64_t magic;
  uint64_t address;
  uint64_t sizes[5];      // elements
  uint64_t strides[4];    // bytes, of dimensions 1 and up
  uint16_t box[5];        // elements
  uint8_t element_bytes;
  uint8_t rank;
  uint8_t swizzle;        // bytes / 32: 0: none, 1, 2, 4
  uint8_t type;           // CUtensorMapDataType
  uint8_t element_strides[5];
  uint8_t fills_with_nan;
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace pkb::emulator
