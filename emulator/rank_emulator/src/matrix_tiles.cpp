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

void halves_to_floats(float (&to)[8], const void* from) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  for (int i = 0; i < 8; ++i) to[i] = half_to_float(bits[i]);
}

void brains_to_floats(float (&to)[8], const void* from) {
  uint16_t bits[8];
  std::memcpy(bits, from, sizeof bits);
  for (int i = 0; i < 8; ++i) to[i] = brain_to_float(bits[i]);
}

}  // namespace pkb::emulator
