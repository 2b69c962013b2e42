// Flash attention backward: gradients of queries, keys and values from the logarithm of the sum of exponentials that the
// forward pass left, without scores in memory.
//
//   pkb::attention::Backward<T> work;                                             // pkb/attention_tiles_cuda.h
//   pkb::attention::launch_backward<true>(work, key_hooks, blocks, stream);       // keys stay: dK (0) and dV (1)
//   pkb::attention::launch_backward<false>(work, query_hooks, blocks, stream);    // queries stay: dQ (0)
//
//   struct Mine {                                                                 // hooks
//     __device__ BackwardTile tile(int index) const;
//     __device__ T* out_row(const BackwardTile&, int which, int i) const;         // where a gradient belongs, on any rank
//     __device__ void leave() const;                                              // called by all threads at the end
//   };
//
// Heads of 64 or 128 elements of bfloat16 or float16 run on the tensor cores (pkb/attention_backward_sm90.h): the bound
// is arithmetic, 14 operations for a query, a key it sees and an element of the head. Everything else runs on CUDA cores.
#pragma once

#include <algorithm>

#include "pkb/attention_backward_sm90.h"
#include "pkb/attention_cuda.h"

namespace pkb {
namespace attention {

// One row of a tile by a warp: 32 of the others at a time, of which each lane multiplies one, then each lane some columns.
template <bool kKeysStay, class T, class Hooks>
__device__ __forceinline__ void differentiate_row(const Backward<T>& work, const Hooks& hooks, const BackwardTile& tile,
                                                  int i) {
  constexpr int kColumns = kMaxHead / 32;
  const int lane = lane_id();
  const auto row_of = [](const Matrix<T>& matrix, int row, int col) { return matrix.data + row * matrix.stride + col; };
  const T* own = row_of(kKeysStay ? work.k : work.q, tile.row + i, tile.col);
  const T* own_two = row_of(kKeysStay ? work.v : work.dout, tile.row + i, tile.col);
  const Matrix<T>&other = kKeysStay ? work.q : work.k, &other_two = kKeysStay ? work.dout : work.v;
  float sums[kColumns] = {}, values[kColumns] = {};
  for (int first = tile.begin<kKeysStay>(32); first < tile.end<kKeysStay>(); first += 32) {
    const int column = first + lane;
    float probability = 0.0f, slope = 0.0f;
    if (column < tile.others && tile.sees<kKeysStay>(i, column)) {
      const T* x = row_of(other, tile.other_row + column, tile.other_col);
      const T* y = row_of(other_two, tile.other_row + column, tile.other_col);
      float score = 0.0f;
      for (int e = 0; e < work.head; ++e) {
        score += to_float(own[e]) * to_float(x[e]);
        slope += to_float(own_two[e]) * to_float(y[e]);
      }
      const int64_t query = tile.stats + (kKeysStay ? column : i);
      probability = __expf(score * work.scale - work.lse[query]);
      slope = probability * (slope - work.delta[query]);
    }
    const int here = min(tile.others - first, 32);
    for (int j = 0; j < here; ++j) {
      const float p = __shfl_sync(kAllLanes, probability, j), s = __shfl_sync(kAllLanes, slope, j);
      const T* x = row_of(other, tile.other_row + first + j, tile.other_col);
      const T* y = row_of(other_two, tile.other_row + first + j, tile.other_col);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (lane + 32 * c >= work.head) break;
        sums[c] += s * to_float(x[lane + 32 * c]);
        if (kKeysStay) values[c] += p * to_float(y[lane + 32 * c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (lane + 32 * c >= work.head) break;
    hooks.out_row(tile, 0, i)[lane + 32 * c] = T(sums[c] * work.scale);
    if (kKeysStay) hooks.out_row(tile, 1, i)[lane + 32 * c] = T(values[c]);
  }
}

template <bool kKeysStay, class T, class Hooks>
__global__ void __launch_bounds__(kSimtThreads)
    differentiate_simt(const __grid_constant__ Backward<T> work, const __grid_constant__ Hooks hooks) {
  for (int index = blockIdx.x; index < work.tiles; index += gridDim.x) {
    const BackwardTile tile = hooks.tile(index);
    for (int i = warp_id(); i < tile.rows; i += kSimtThreads / 32) {
      differentiate_row<kKeysStay>(work, hooks, tile, i);
    }
  }
  __syncthreads();
  hooks.leave();
}

// Enqueues one of the kernels with so many blocks, which are resident at once up to one a multiprocessor.
template <bool kKeysStay, class T, class Hooks>
void launch_backward(const Backward<T>& work, const Hooks& hooks, int blocks, cudaStream_t stream) {
  if (work.head > kMaxHead) TVM_FFI_THROW(ValueError) << "expected heads of at most 256 elements, got " << work.head;
  const unsigned grid = unsigned(std::max(blocks, 1));
  if constexpr (!std::is_same_v<T, float>) {
    const bool is_aligned = work.q.is_aligned() && work.k.is_aligned() && work.v.is_aligned() && work.dout.is_aligned();
    if (is_aligned && work.tiles > 0) {
      if (work.head == 64) return launch_backward_sm90<kKeysStay, 64>(work, hooks, grid, stream);
      if (work.head == 128) return launch_backward_sm90<kKeysStay, 128>(work, hooks, grid, stream);
    }
  }
  differentiate_simt<kKeysStay, T, Hooks><<<grid, kSimtThreads, 0, stream>>>(work, hooks);
  PKB_CUDA_LAUNCHED();
}

// delta of (rows, heads) vectors, a warp each: out and dout as they lie, delta (rows / positions, heads, positions).
template <class T>
__global__ void __launch_bounds__(kSimtThreads)
    sum_products(const T* out, const T* dout, float* delta, int64_t vectors, int head, int heads, int positions) {
  const int64_t vector = blockIdx.x * int64_t(kSimtThreads / 32) + warp_id();
  if (vector >= vectors) return;
  float sum = 0.0f;
  for (int e = lane_id(); e < head; e += 32) sum += to_float(out[vector * head + e]) * to_float(dout[vector * head + e]);
  sum = Warp().sum(sum);
  const int64_t row = vector / heads, sample = row / positions;
  if (lane_id() == 0) delta[(sample * heads + vector % heads) * positions + row % positions] = sum;
}

}  // namespace attention
}  // namespace pkb
