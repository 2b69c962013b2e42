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
  for (int row = 0; row < 16; ++row) {
    float of_row[8];
    std::memcpy(of_row, sums + row * 8, sizeof of_row);
    for (int k = 0; k < depth; ++k) {
      const double factor = a[row * depth + k];
      for (int col = 0; col < 8; ++col) of_row[col] = float(double(of_row[col]) + factor * double(b[k * 8 + col]));
    }
    for (int col = 0; col < 8; ++col) {
      const bool is_number = of_row[col] == of_row[col];
      sums[row * 8 + col] = is_number ? std::bit_cast<uint32_t>(of_row[col]) : 0x7fffffffu;
    }
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
