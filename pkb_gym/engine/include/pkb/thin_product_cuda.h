// Products of many rows with a matrix of few columns, such as the logits of a router or the first factor of LoRA: a block
// forms 16 rows of sums in shared memory, and does with them what it likes.
//
//   __shared__ pkb::ThinParts parts;
//   extern __shared__ float sums[];                                     // (16, cols)
//   pkb::multiply_thin(row_of, weight, weight_stride, cols, depth, sums, parts);   // row_of(i): const __nv_bfloat16*
//
// sums[i][j] = sum over k of row_of(i)[k] weight[j * weight_stride + k]; row_of() may be null. The warps of a block share
// the depth, and add up their parts in the order of warps. Both operands go from memory to the tensor cores' registers, 16
// bytes a lane, since the order of the depth is free: lane c of four takes eight neighbours for two products of depth 16.
// Bound: memory, the rows once; the matrix comes from the caches.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "pkb/teams_cuda.h"

namespace pkb {

constexpr int kThinRows = 16, kThinWarps = 8, kThinThreads = 32 * kThinWarps;
constexpr int kThinCols = 32;  // of one round

struct ThinParts {
  float of_warps[kThinWarps][kThinRows][kThinCols];
};

namespace thin {

// Eight numbers from place k of a row on, zeros behind its end.
__device__ __forceinline__ uint4 load_eight(const __nv_bfloat16* row, int64_t k, int64_t depth, bool aligned) {
  uint4 eight{0, 0, 0, 0};
  if (row == nullptr || k >= depth) return eight;
  if (aligned) return *reinterpret_cast<const uint4*>(row + k);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < depth) words[i / 2] |= uint32_t(__bfloat16_as_ushort(row[k + i])) << i % 2 * 16;
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ void multiply(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace thin

// By all kThinThreads threads of a block. Rows and strides of a multiple of eight numbers are fast.
template <class RowOf>
__device__ __forceinline__ void multiply_thin(const RowOf& row_of, const __nv_bfloat16* weight, int64_t weight_stride,
                                              int cols, int64_t depth, float* sums, ThinParts& parts) {
  constexpr int kTiles = kThinCols / 8;
  const int lane = lane_id(), g = lane / 4, c = lane % 4;
  const __nv_bfloat16 *low = row_of(g), *high = row_of(g + 8);
  const auto is_aligned = [&](const __nv_bfloat16* row) { return reinterpret_cast<uintptr_t>(row) % 16 == 0; };
  const bool whole = depth % 8 == 0 && weight_stride % 8 == 0;
  const bool aligned = whole && is_aligned(low) && is_aligned(high) && is_aligned(weight);
  for (int first = 0; first < cols; first += kThinCols) {
    float of_warp[kTiles][4] = {};
#pragma unroll 2
    for (int64_t k = warp_id() * 32 + c * 8; k < depth + c * 8; k += kThinWarps * 32) {
      const uint4 a = thin::load_eight(low, k, depth, aligned), b = thin::load_eight(high, k, depth, aligned);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (first + tile * 8 >= cols) break;
        const int col = first + tile * 8 + g;
        const uint4 w = thin::load_eight(col < cols ? weight + col * weight_stride : nullptr, k, depth, aligned);
        thin::multiply(of_warp[tile], a.x, b.x, a.y, b.y, w.x, w.y);
        thin::multiply(of_warp[tile], a.z, b.z, a.w, b.w, w.z, w.w);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) parts.of_warps[warp_id()][g + i / 2 * 8][tile * 8 + c * 2 + i % 2] = of_warp[tile][i];
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < kThinRows * kThinCols; i += kThinThreads) {
      const int row = i / kThinCols, col = i % kThinCols;
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kThinWarps; ++warp) sum += parts.of_warps[warp][row][col];
      if (first + col < cols) sums[row * cols + first + col] = sum;
    }
    __syncthreads();
  }
}

}  // namespace pkb
