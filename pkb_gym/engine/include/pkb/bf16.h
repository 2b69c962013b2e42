// bfloat16 on the CPU: storage and conversion. Arithmetic is float32, as on a GPU's vector units.
#pragma once

#include <cstdint>
#include <cstring>

namespace pkb {

// The value of a bfloat16 bit pattern.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// The nearest bfloat16 (ties to even; NaN stays NaN). Written without branches so that loops over it vectorise.
inline uint16_t float_to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const uint32_t nan = (word >> 16) | 0x40u;
  return uint16_t((word & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// One stored element.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float value) : bits(float_to_bf16(value)) {}
  operator float() const { return bf16_to_float(bits); }
};

}  // namespace pkb
