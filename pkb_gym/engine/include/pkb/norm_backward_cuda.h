// Backward passes of LayerNorm and RMSNorm: the gradient of a row by a warp or a block, and the gradients of gain and
// bias, which are sums over rows, by all blocks of a kernel. With x_hat the normalised row and slope = gain * dy:
//
//   LayerNorm: dx = (slope - mean(slope) - x_hat * mean(slope * x_hat)) / sigma
//   RMSNorm:   dx = (slope - x_hat * mean(slope * x_hat)) / rms
//   d_gain = sum over rows of dy * x_hat, d_bias = sum over rows of dy
//
//   pkb::norm_backward<true, kLanes, kHeld>(team, pieces, columns, 1 / sigma,
//                                           [&](int piece, float (&slope)[kLanes], float (&x_hat)[kLanes]) { ... },
//                                           [&](int piece, const float (&dx)[kLanes]) { ... });
//   pkb::ColumnSums<256, 32, kLanes, 2> sums{rows, columns, slabs, partials, arrived};
//   sums.run(tile, slab, [&](int64_t row, int column, float (&sums)[2][kLanes]) { ... },
//            [&](int which, int column, float sum) { ... });
//
// Functions yield elements, so that what they are dequantised, recomputed or summed from need not be stored first. Bound:
// memory, one read of both operands each and one write of dx; partial sums of a slab cost 2 / (rows of a slab) of that.
//
// Formulas: J. L. Ba, J. R. Kiros, G. E. Hinton, Layer Normalization, arXiv:1607.06450, equation 4, and B. Zhang,
// R. Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, equation 4, differentiated.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "pkb/teams_cuda.h"

namespace pkb {

// Calls value(piece, slope, x_hat), which must set all of both and leave zero what lies beyond the row, and then
// result(piece, dx), for every piece of kLanes elements. A thread holds kHeld pieces in registers; those beyond are asked
// for twice. kCentred: LayerNorm, else RMSNorm. `inverse` is 1 / sigma, or 1 / rms, of the row.
template <bool kCentred, int kLanes, int kHeld, class Team, class Value, class Result>
__device__ __forceinline__ void norm_backward(const Team& team, int pieces, int columns, float inverse,
                                              const Value& value, const Result& result) {
  float slopes[kHeld][kLanes], x_hats[kHeld][kLanes], sum = 0.0f, products = 0.0f;
  const auto add = [&](const float(&slope)[kLanes], const float(&x_hat)[kLanes]) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (kCentred) sum += slope[i];
      products += slope[i] * x_hat[i];
    }
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int piece = team.thread() + j * team.threads();
    if (piece < pieces) {
      value(piece, slopes[j], x_hats[j]);
      add(slopes[j], x_hats[j]);
    }
  }
  const int rest = team.thread() + kHeld * team.threads();
  float slope[kLanes], x_hat[kLanes];
  for (int piece = rest; piece < pieces; piece += team.threads()) {
    value(piece, slope, x_hat);
    add(slope, x_hat);
  }
  float mean = 0.0f;
  if constexpr (kCentred) mean = team.sum(sum) / float(columns);
  const float mean_product = team.sum(products) / float(columns);
  const auto differentiate = [&](int piece, const float(&slope)[kLanes], const float(&x_hat)[kLanes]) {
    float dx[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) dx[i] = (slope[i] - mean - x_hat[i] * mean_product) * inverse;
    result(piece, dx);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int piece = team.thread() + j * team.threads();
    if (piece < pieces) differentiate(piece, slopes[j], x_hats[j]);
  }
  for (int piece = rest; piece < pieces; piece += team.threads()) {
    value(piece, slope, x_hat);
    differentiate(piece, slope, x_hat);
  }
}

// kSums sums over the rows of each column, by blocks of kThreads threads. kAcross threads stand side by side, each on
// kLanes columns: their columns are a tile. Rows are cut into slabs. Sums are float32, added in an order that depends on
// nothing but the numbers below, so that they have the same bits in every run.
template <int kThreads, int kAcross, int kLanes, int kSums>
struct ColumnSums {
  static constexpr int kColumns = kAcross * kLanes;      // of a tile
  static constexpr int kRowsAtOnce = kThreads / kAcross;
  static_assert(32 % kAcross == 0 && kThreads % 32 == 0, "a warp holds whole rows of threads");

  int64_t rows;
  int columns;        // a multiple of kLanes
  int slabs;
  float* partials;    // slabs x kSums x columns; unused if there is one slab
  unsigned* arrived;  // one for each tile, 0 at first and afterwards; unused if there is one slab

  __host__ __device__ static int tiles(int columns) { return (columns + kColumns - 1) / kColumns; }

  // Slabs for about `blocks` blocks in all, none of so few rows that its partial sums would cost more than an eighth.
  static int slabs_for(int64_t rows, int columns, int64_t blocks) {
    constexpr int64_t kFewest = kRowsAtOnce > 16 ? kRowsAtOnce : 16;
    const int64_t wanted = std::min<int64_t>(blocks / std::max(tiles(columns), 1), rows / kFewest);
    return int(std::max<int64_t>(wanted, 1));
  }

  // The work of one block, for all of its threads: every pair of a tile and a slab is some block's, none waits for
  // another. Calls add(row, column, sums), which adds the row's terms at columns `column` .. `column` + kLanes - 1, and,
  // in the block of the tile's last slab to end, result(which, column, sum) for each sum.
  template <class Add, class Result>
  __device__ __forceinline__ void run(int tile, int slab, const Add& add, const Result& result) const {
    const int first = tile * kColumns;
    const int64_t begin = rows * slab / slabs, end = rows * (slab + 1) / slabs;
    if (slabs == 1) return sum_rows(first, begin, end, add, result);
    sum_rows(first, begin, end, add, [&](int which, int column, float sum) {
      partials[(int64_t(slab) * kSums + which) * columns + column] = sum;
    });
    if (!arrives_last(arrived + tile, unsigned(slabs))) return;
    const auto add_partial = [&](int64_t of_slab, int column, float(&sums)[kSums][kLanes]) {
#pragma unroll
      for (int which = 0; which < kSums; ++which) {
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          sums[which][i] += __ldcg(partials + (of_slab * kSums + which) * columns + column + i);
        }
      }
    };
    sum_rows(first, 0, slabs, add_partial, result);
  }

 private:
  template <class Add, class Result>
  __device__ __forceinline__ void sum_rows(int first, int64_t begin, int64_t end, const Add& add,
                                           const Result& result) const {
    __shared__ alignas(16) float of_warps[kThreads / 32][kSums][kColumns];
    const int across = int(threadIdx.x) % kAcross, own = first + across * kLanes;
    float sums[kSums][kLanes] = {};
    if (own < columns) {
#pragma unroll 4
      for (int64_t row = begin + int(threadIdx.x) / kAcross; row < end; row += kRowsAtOnce) add(row, own, sums);
    }
    __syncthreads();  // the last sums have been read
#pragma unroll
    for (int which = 0; which < kSums; ++which) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
#pragma unroll
        for (int apart = 16; apart >= kAcross; apart /= 2) {
          sums[which][i] += __shfl_xor_sync(kAllLanes, sums[which][i], apart);
        }
        if (lane_id() < kAcross) of_warps[warp_id()][which][across * kLanes + i] = sums[which][i];
      }
    }
    __syncthreads();
    for (int number = int(threadIdx.x); number < kSums * kColumns; number += kThreads) {
      const int which = number / kColumns, place = number % kColumns;
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kThreads / 32; ++warp) sum += of_warps[warp][which][place];
      if (first + place < columns) result(which, first + place, sum);
    }
  }
};

}  // namespace pkb
