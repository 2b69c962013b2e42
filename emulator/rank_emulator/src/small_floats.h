// Floating-point formats of 8 to 32 bits: conversion from and to double, with every rounding of PTX.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace pkb::emulator {

enum class Rounding : uint8_t { kNearestEven, kToZero, kDown, kUp, kNearestAway };

// A format with subnormal numbers. Those without infinities (e4m3) hold values where others hold infinities.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  uint32_t nan;  // that conversions and arithmetic give
};
constexpr Format kHalf{5, 10, true, 0x7fff}, kBrain{8, 7, true, 0x7fff}, kTensorFloat{8, 10, true, 0x3ffff};
constexpr Format kSingle{8, 23, true, 0x7fffffff}, kE4m3{4, 3, false, 0x7f}, kE5m2{5, 2, true, 0x7f};

// The bits of `value` in a format. Beyond the largest number: infinity, or the largest number where rounding leads there
// or `finite` asks for it.
inline uint32_t encode(double value, const Format& format, Rounding rounding = Rounding::kNearestEven, bool finite = false) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const bool negative = bits >> 63;
  const uint32_t sign = uint32_t(negative) << width;
  if (value != value) return format.nan;
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  const uint32_t largest = format.has_infinity ? infinity - 1 : infinity + (1u << format.mantissa_bits) - 2;
  if (std::isinf(value)) return format.has_infinity && !finite ? sign | infinity : finite || !format.has_infinity ? sign | largest : format.nan;
  if (value == 0) return sign;
  int exponent;
  std::frexp(value, &exponent);  // |value| = m * 2^exponent, m in [0.5, 1)
  const int lowest = 1 - bias - format.mantissa_bits;  // of the smallest subnormal number
  const int unit = std::max(exponent - 1 - format.mantissa_bits, lowest);
  const double scaled = std::ldexp(std::fabs(value), -unit);  // exact; in units of the last place
  double whole = std::floor(scaled);
  const double rest = scaled - whole;
  bool up = false;
  switch (rounding) {
    case Rounding::kNearestEven: up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1); break;
    case Rounding::kNearestAway: up = rest >= 0.5; break;
    case Rounding::kToZero: break;
    case Rounding::kDown: up = rest > 0 && negative; break;
    case Rounding::kUp: up = rest > 0 && !negative; break;
  }
  const uint64_t mantissa = uint64_t(whole) + up;  // a carry grows into the exponent
  const uint64_t result = mantissa + (uint64_t(unit - lowest) << format.mantissa_bits);
  if (result <= largest) return sign | uint32_t(result);
  const bool stays = rounding == Rounding::kToZero || (rounding == Rounding::kDown && !negative) ||
                     (rounding == Rounding::kUp && negative);
  return sign | (stays || finite || !format.has_infinity ? largest : infinity);
}

inline double decode(uint32_t bits, const Format& format) {
  const int width = format.exponent_bits + format.mantissa_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double sign = bits >> width & 1 ? -1.0 : 1.0;
  const int exponent = int(bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1));
  const uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const bool top = exponent == (1 << format.exponent_bits) - 1;
  if (top && format.has_infinity) return mantissa ? std::nan("") : sign * INFINITY;
  if (top && mantissa == (1u << format.mantissa_bits) - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(double(mantissa), 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(double(mantissa | 1u << format.mantissa_bits), exponent - bias - format.mantissa_bits);
}

// The exact value of a half.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(rest == 0x7c00 ? sign | 0x7f800000u : 0x7fffffffu);
  const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

inline float brain_to_float(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  return std::bit_cast<float>((word & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : word);
}

// To nearest even.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return 0x7fff;
  if (rest >= 0x477ff000u) return uint16_t(sign | 0x7c00);
  if (rest < 0x38800000u) {  // a subnormal half: the float adder rounds at its last place
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((rest + 0xfff + (rest >> 13 & 1) - 0x38000000u) >> 13));
}

inline uint16_t float_to_brain(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace pkb::emulator
