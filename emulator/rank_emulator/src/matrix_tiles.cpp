#include "matrix_tiles.h"

#include <cstring>

namespace pkb::emulator {

void add_product(float* sums, const float* a, const float* b, int columns, int depth) {
  for (int row = 0; row < 16; ++row) {
    float* const to = sums + row * columns;
    for (int k = 0; k < depth; ++k) {
      const float factor = a[row * depth + k];
      const float* const from = b + k * columns;
#pragma GCC ivdep
      for (int col = 0; col < columns; ++col) to[col] = __builtin_fmaf(factor, from[col], to[col]);
    }
  }
}

void add_rounded_product(uint32_t* sums, const float* a, const float* b, int depth) {
  using Floats = float __attribute__((vector_size(32)));
  using Doubles = double __attribute__((vector_size(64)));
  constexpr int kRows = 4;  // side by side, since each step of a row waits for the one before
  for (int first = 0; first < 16; first += kRows) {
    Floats rows[kRows];
    std::memcpy(rows, sums + first * 8, sizeof rows);
    for (int k = 0; k < depth; ++k) {
      Floats right;
      std::memcpy(&right, b + k * 8, sizeof right);
      for (int row = 0; row < kRows; ++row) {
        const Doubles product = __builtin_convertvector(right, Doubles) * double(a[(first + row) * depth + k]);
        rows[row] = __builtin_convertvector(__builtin_convertvector(rows[row], Doubles) + product, Floats);
      }
    }
    std::memcpy(sums + first * 8, rows, sizeof rows);
  }
  for (int i = 0; i < 16 * 8; ++i) {
    if ((sums[i] & 0x7fffffffu) > 0x7f800000u) sums[i] = 0x7fffffffu;
  }
}

void add_integer_product(uint32_t* sums, const float* a, const float* b, int depth) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < depth; ++k) {
      for (int col = 0; col < 8; ++col) sums[row * 8 + col] += uint32_t(int32_t(a[row * depth + k] * b[k * 8 + col]));
    }
  }
}

void halves_to_floats(float* to, const void* from) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  for (int i = 0; i < 8; ++i) to[i] = half_to_float(bits[i]);
}

void brains_to_floats(float* to, const void* from) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  for (int i = 0; i < 8; ++i) to[i] = brain_to_float(bits[i]);
}

}  // namespace pkb::emulator
