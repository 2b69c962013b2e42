// Flash attention forward: softmax(scale Q K^T) V over heads of at most 256 elements, with causal masks, grouped heads,
// ranges of keys, and the logarithm of the sum of exponentials out and in, so that kernels of several ranks compose it.
//
//   pkb::attention::Forward<T> work;
//   work.q = {q, rows, columns, stride}; ...       // pkb/attention_tiles_cuda.h
//   pkb::attention::launch(work, hooks, pkb::multiprocessors(), comm.cuda_stream());
//
// Heads of 64 or 128 elements of bfloat16 or float16 run on the tensor cores (pkb/attention_sm90.h): the bound is
// arithmetic, 4 operations for a query, a key it sees and an element of the head. Everything else runs on CUDA cores, a
// warp a query, and is bound by loads from the L1 cache.
#pragma once

#include <algorithm>

#include "pkb/attention_sm90.h"
#include "pkb/attention_tiles_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {
namespace attention {

constexpr int kSimtThreads = 256;

// One query of a tile by a warp: 32 keys at a time, of which each lane multiplies one, and then each lane some columns.
template <class T, class Hooks>
__device__ __forceinline__ void attend_query(const Forward<T>& work, const Hooks& hooks, const Tile& tile, int i) {
  constexpr int kColumns = kMaxHead / 32;
  const int lane = lane_id(), keys = max(tile.visible_to(i), 0);
  const T* q = work.q.data + (tile.q_row + i) * work.q.stride + tile.q_col;
  const T* k = work.k.data + tile.kv_row * work.k.stride + tile.kv_col;
  const T* v = work.v.data + tile.kv_row * work.v.stride + tile.kv_col;
  float most = -kInfinity, sum = 0.0f, sums[kColumns] = {};
  if constexpr (Hooks::kResumes) {
    most = hooks.resume_lse(tile, i);
    sum = most == -kInfinity ? 0.0f : 1.0f;
    const float* before = hooks.resume_row(tile, i);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane + 32 * c < work.head && sum > 0.0f) sums[c] = before[lane + 32 * c];
    }
  }
  for (int first = 0; first < keys; first += 32) {
    const int key = first + lane;
    float score = -kInfinity;
    if (key < keys) {
      const T* row = k + key * work.k.stride;
      score = 0.0f;
      for (int e = 0; e < work.head; ++e) score += to_float(q[e]) * to_float(row[e]);
      score *= work.scale;
    }
    const float largest = fmaxf(most, reduce_warp(score, [](float a, float b) { return fmaxf(a, b); }));
    const float shrink = most == -kInfinity ? 0.0f : __expf(most - largest), weight = __expf(score - largest);
    most = largest;
    sum = sum * shrink + Warp().sum(weight);
#pragma unroll
    for (float& each : sums) each *= shrink;
    const int here = min(keys - first, 32);
    for (int j = 0; j < here; ++j) {
      const float of_key = __shfl_sync(kAllLanes, weight, j);
      const T* row = v + (first + j) * work.v.stride;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (lane + 32 * c < work.head) sums[c] += of_key * to_float(row[lane + 32 * c]);
      }
    }
  }
  typename Hooks::Out* out = hooks.out_row(tile, i);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (lane + 32 * c < work.head) out[lane + 32 * c] = typename Hooks::Out(sum > 0.0f ? sums[c] / sum : 0.0f);
  }
  if (lane == 0) {
    float* lse = hooks.lse(tile, i);
    if (lse) *lse = most + logf(sum);
  }
}

template <class T, class Hooks>
__global__ void __launch_bounds__(kSimtThreads)
    attend_simt(const __grid_constant__ Forward<T> work, const __grid_constant__ Hooks hooks) {
  hooks.enter();
  __syncthreads();
  for (int index = blockIdx.x; index < work.tiles; index += gridDim.x) {
    const Tile tile = hooks.tile(index);
    hooks.await(tile);
    for (int i = warp_id(); i < tile.rows; i += kSimtThreads / 32) attend_query(work, hooks, tile, i);
  }
  __syncthreads();
  hooks.leave();
}

// Whether the tensor cores take it.
template <class T>
bool suits_sm90(const Forward<T>& work) {
  return !std::is_same_v<T, float> && (work.head == 64 || work.head == 128) && work.scale > 0.0f &&
         work.q.is_aligned() && work.k.is_aligned() && work.v.is_aligned();
}

// Enqueues the kernel for CUDA cores, where tiles are so small that tensor cores would multiply mostly what is masked.
template <class T, class Hooks>
void launch_simt(const Forward<T>& work, const Hooks& hooks, int blocks, cudaStream_t stream) {
  if (work.head > kMaxHead) TVM_FFI_THROW(ValueError) << "expected heads of at most 256 elements, got " << work.head;
  attend_simt<T, Hooks><<<unsigned(std::max(blocks, 1)), kSimtThreads, 0, stream>>>(work, hooks);
  PKB_CUDA_LAUNCHED();
}

// Enqueues the kernel with so many blocks, which are resident at once up to one a multiprocessor.
template <class T, class Hooks>
void launch(const Forward<T>& work, const Hooks& hooks, int blocks, cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, float>) {
    const unsigned grid = unsigned(std::max(blocks, 1));
    if (suits_sm90(work) && work.tiles > 0) {
      if (work.head == 64) return launch_sm90<T, 64>(work, hooks, grid, stream);
      return launch_sm90<T, 128>(work, hooks, grid, stream);
    }
  }
  launch_simt(work, hooks, blocks, stream);
}

}  // namespace attention
}  // namespace pkb
