// Routings of tokens to experts, or to ranks: pairs (expert, token) numbered in ascending order by prefix sums, so that
// the same routing has the same order in every call, and what that order says of each token.
//
//   pkb::Pairs pairs = pkb::Pairs::of(experts, tokens, memory);        // memory of Pairs::bytes(experts, tokens)
//   pkb::number_pairs(pairs, IsChosen{...}, stream);                   // IsChosen()(expert, token), asked once a pair
//   ... pairs.visit(token, [&](int expert, int64_t number) { ... });   // in the next kernel, by a thread a token
//
// A block an expert marks 1024 tokens at a time: a bit a token, and for each 32 of them the number of those before.
// visit() adds the counts of the experts before. Bound: memory, a read of what says whether a token chose an expert.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

namespace pkb {

// ---- choice of a token's experts ----

// combine(x, y) of the values of kLanes neighbouring lanes.
template <int kLanes, class X, class Combine>
__device__ __forceinline__ X reduce_lanes(X x, Combine combine) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

template <int kLanes>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t x) {
  if constexpr (kLanes == 32) return __reduce_max_sync(kAllLanes, x);
  return reduce_lanes<kLanes>(x, [](uint32_t a, uint32_t b) { return max(a, b); });
}

// Marks the k largest of the keys of kLanes lanes, of equal ones those that come first, as bits of each lane. Keys are
// lost; 0 is none.
template <int kLanes, int kEach>
__device__ __forceinline__ uint32_t choose_largest(uint32_t (&keys)[kEach], int k) {
  const unsigned group = kLanes == 32 ? kAllLanes : ((1u << kLanes % 32) - 1) << lane_id() / kLanes * kLanes;
  uint32_t chosen = 0;
  for (int i = 0; i < k; ++i) {
    uint32_t own = 0;
#pragma unroll
    for (int each = 0; each < kEach; ++each) own = max(own, keys[each]);
    const uint32_t largest = largest_of_lanes<kLanes>(own);
    const unsigned holders = __ballot_sync(kAllLanes, own == largest) & group;
    bool open = __ffs(int(holders)) - 1 == lane_id();
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      if (open && keys[each] == largest) {
        keys[each] = 0;
        chosen |= 1u << each;
        open = false;
      }
    }
  }
  return chosen;
}

// ---- pairs (expert, token) ----

constexpr int kNumberingThreads = 1024;

struct Pairs {
  uint32_t* marks;  // (experts, words): a bit for each of 32 tokens
  int* before;      // (experts, words): tokens of this expert in the words before
  int* counts;      // (experts)
  int experts;
  int64_t tokens;

  __host__ __device__ int64_t words() const { return (tokens + 31) / 32; }

  static int64_t bytes(int64_t experts, int64_t tokens) { return experts * ((tokens + 31) / 32 * 2 + 1) * 4; }
  static Pairs of(int64_t experts, int64_t tokens, void* memory) {
    Pairs pairs{};
    pairs.experts = int(experts);
    pairs.tokens = tokens;
    pairs.marks = static_cast<uint32_t*>(memory);
    pairs.before = reinterpret_cast<int*>(pairs.marks + experts * pairs.words());
    pairs.counts = pairs.before + experts * pairs.words();
    return pairs;
  }

  // Calls f(expert, number) for the pairs of a token in ascending order; number within the expert's pairs.
  template <class F>
  __device__ __forceinline__ void visit(int64_t token, const F& f) const {
    const uint32_t bit = 1u << token % 32;
#pragma unroll 4
    for (int expert = 0; expert < experts; ++expert) {
      const int64_t at = expert * words() + token / 32;
      const uint32_t mark = marks[at];
      if (mark & bit) f(expert, before[at] + __popc(mark & (bit - 1)));
    }
  }
};

template <class IsChosen>
__global__ void __launch_bounds__(kNumberingThreads)
    number_pairs_kernel(const __grid_constant__ Pairs pairs, const __grid_constant__ IsChosen is_chosen) {
  __shared__ int of_warps[kNumberingThreads / 32];
  const int expert = int(blockIdx.x), warp = warp_id(), lane = lane_id();
  int before = 0;
  for (int64_t first = 0; first < pairs.tokens; first += kNumberingThreads) {
    const int64_t token = first + threadIdx.x;
    const uint32_t mark = __ballot_sync(kAllLanes, token < pairs.tokens && is_chosen(expert, token));
    if (lane == 0) of_warps[warp] = __popc(mark);
    __syncthreads();
    const int count = of_warps[lane];  // as many warps as lanes
    const int before_warp = __reduce_add_sync(kAllLanes, lane < warp ? count : 0);
    const int all = __reduce_add_sync(kAllLanes, count);
    if (lane == 0 && token < pairs.tokens) {
      const int64_t at = expert * pairs.words() + token / 32;
      pairs.marks[at] = mark;
      pairs.before[at] = before + before_warp;
    }
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) pairs.counts[expert] = before;
}

template <class IsChosen>
void number_pairs(const Pairs& pairs, const IsChosen& is_chosen, cudaStream_t stream) {
  if (pairs.experts == 0) return;
  number_pairs_kernel<<<unsigned(pairs.experts), kNumberingThreads, 0, stream>>>(pairs, is_chosen);
  PKB_CUDA_LAUNCHED();
}

// Numbers of pairs of the experts before each one, into shared memory of so many numbers; by all threads of a block.
__device__ __forceinline__ void count_before(const Pairs& pairs, int* starts) {
  if (warp_id() == 0) {
    int before = 0;
    for (int first = 0; first < pairs.experts; first += 32) {
      const int expert = first + lane_id();
      int sum = expert < pairs.experts ? pairs.counts[expert] : 0;
      const int own = sum;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int other = __shfl_up_sync(kAllLanes, sum, apart);
        if (lane_id() >= apart) sum += other;
      }
      if (expert < pairs.experts) starts[expert] = before + sum - own;
      before += __shfl_sync(kAllLanes, sum, 31);
    }
  }
  __syncthreads();
}

}  // namespace pkb
