// float16 on the CPU: storage and conversion. Arithmetic is float32, as for bfloat16.
#pragma once

#include <cstdint>
#include <cstring>

namespace pkb {

// The value of a float16 bit pattern. Without branches, so that loops over it vectorise.
inline float fp16_to_float(uint16_t bits) {
  uint32_t word = uint32_t(bits & 0x7fffu) << 13;  // exponent and mantissa in place, the exponent 112 too small
  float value;
  std::memcpy(&value, &word, sizeof value);
  value *= 0x1p112f;  // exact, and makes subnormal numbers normal
  std::memcpy(&word, &value, sizeof word);
  word |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;  // infinity and NaN keep the largest exponent
  word |= uint32_t(bits & 0x8000u) << 16;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// The nearest float16 (ties to even; beyond 65504 infinity; NaN stays NaN).
inline uint16_t float_to_fp16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  const uint32_t sign = (word >> 16) & 0x8000u;
  word &= 0x7fffffffu;
  const uint32_t normal = (word - (112u << 23) + 0xfffu + ((word >> 13) & 1u)) >> 13;
  float magnitude;
  std::memcpy(&magnitude, &word, sizeof magnitude);
  magnitude += 0.5f;  // one unit in the last place of 0.5f is the smallest float16: the addition rounds
  uint32_t subnormal;
  std::memcpy(&subnormal, &magnitude, sizeof subnormal);
  subnormal -= 0x3f000000u;
  const uint32_t special = word > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t result = word < (113u << 23) ? subnormal : normal;
  result = word >= (143u << 23) ? special : result;
  return uint16_t(sign | result);
}

// One stored element.
struct fp16 {
  uint16_t bits;
  fp16() = default;
  explicit fp16(float value) : bits(float_to_fp16(value)) {}
  operator float() const { return fp16_to_float(bits); }
};

}  // namespace pkb
