// Operands of wgmma: matrices in shared memory, described by 64 bits.
#pragma once

#include <cstdint>

#include "small_floats.h"

namespace pkb::emulator {

struct MatrixDescriptor {
  uint32_t start, leading, stride;  // bytes
  int swizzle;                      // 0: none, 1: 128 bytes, 2: 64, 3: 32

  explicit MatrixDescriptor(uint64_t bits)
      : start(uint32_t(bits & 0x3fff) << 4), leading(uint32_t(bits >> 16 & 0x3fff) << 4),
        stride(uint32_t(bits >> 32 & 0x3fff) << 4), swizzle(int(bits >> 62)) {}

  uint32_t row_bytes() const { return swizzle == 0 ? 16 : 256u >> swizzle; }
  uint32_t swizzled(uint32_t address) const {
    if (swizzle == 0) return address;
    return address ^ ((address >> 7 & ((8u >> (swizzle - 1)) - 1)) << 4);
  }
  // Where 16 bytes of a K-major matrix lie: of row `row`, the `unit`-th along k.
  uint32_t along_k(uint32_t row, uint32_t unit) const {
    const uint32_t at = start + row / 8 * stride + row % 8 * row_bytes();
    return swizzled(swizzle ? at + unit * 16 : at + unit * leading);
  }
  // Where 16 bytes of an MN-major matrix lie: at depth `k`, the `unit`-th along its rows.
  uint32_t along_rows(uint32_t k, uint32_t unit) const {
    if (swizzle == 0) return start + k / 8 * leading + k % 8 * 16 + unit * stride;
    const uint32_t units = row_bytes() / 16;
    return swizzled(start + unit / units * leading + k / 8 * stride + k % 8 * row_bytes() + unit % units * 16);
  }
};

// sums (16, columns) += a (16, depth) b (depth, columns), all row-major.
void add_product(float* sums, const float* a, const float* b, int columns, int depth);
// sums (16, 8) += a (16, depth) b (depth, 8): of floats, each exact product rounded into its sum by itself (NaN is
// 0x7fffffff), and of integers that floats hold.
void add_rounded_product(uint32_t* sums, const float* a, const float* b, int depth);
void add_integer_product(uint32_t* sums, const float* a, const float* b, int depth);
// Eight values of 16 bits as floats.
void halves_to_floats(float* to, const void* from);
void brains_to_floats(float* to, const void* from);

}  // namespace pkb::emulator
