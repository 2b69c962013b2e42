// Threads that do something together: a warp or a block reduces values, or counts those that want something; the blocks
// of a kernel find out which of them is the last. Each thread of the team calls the function and gets the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pkb {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return int(threadIdx.x % 32); }
__device__ __forceinline__ int warp_id() { return int(threadIdx.x / 32); }

// combine(x, y) of a warp's values, in any order.
template <class X, class Combine>
__device__ __forceinline__ X reduce_warp(X x, Combine combine) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

// The same for a block of kThreads.
template <int kThreads, class X, class Combine>
__device__ __forceinline__ X reduce_block(X x, Combine combine) {
  __shared__ X of_warps[kThreads / 32];
  x = reduce_warp(x, combine);
  __syncthreads();  // the last result has been read
  if (lane_id() == 0) of_warps[warp_id()] = x;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) x = warp ? combine(x, of_warps[warp]) : of_warps[warp];
  return x;
}

// A warp as a team: the code that is given a Warp or a Block runs on either.
struct Warp {
  __device__ int thread() const { return lane_id(); }
  __device__ int threads() const { return 32; }
  __device__ int sum(int x) const { return __reduce_add_sync(kAllLanes, x); }
  __device__ uint32_t min(uint32_t x) const { return __reduce_min_sync(kAllLanes, x); }
  __device__ uint32_t max(uint32_t x) const { return __reduce_max_sync(kAllLanes, x); }
  __device__ float sum(float x) const {
    return reduce_warp(x, [](float a, float b) { return a + b; });
  }
};

// A block of whole warps, as many as it was launched with.
struct Block {
  __device__ int thread() const { return int(threadIdx.x); }
  __device__ int threads() const { return int(blockDim.x); }
  __device__ int sum(int x) const { return reduce(Warp().sum(x), 0, [](int a) { return Warp().sum(a); }); }
  __device__ float sum(float x) const { return reduce(Warp().sum(x), 0.0f, [](float a) { return Warp().sum(a); }); }
  __device__ uint32_t min(uint32_t x) const {
    return reduce(Warp().min(x), ~0u, [](uint32_t a) { return Warp().min(a); });
  }
  __device__ uint32_t max(uint32_t x) const {
    return reduce(Warp().max(x), 0u, [](uint32_t a) { return Warp().max(a); });
  }

 private:
  template <class X, class OfWarp>
  __device__ static X reduce(X of_own_warp, X neutral, OfWarp of_warp) {
    if (blockDim.x == 32) return of_own_warp;
    __shared__ X of_warps[32];
    __syncthreads();  // the last result has been read
    if (lane_id() == 0) of_warps[warp_id()] = of_own_warp;
    __syncthreads();
    return of_warp(lane_id() < int(blockDim.x) / 32 ? of_warps[lane_id()] : neutral);
  }
};

// Lanes before this one that `wanted` (a ballot) names.
__device__ __forceinline__ int lanes_before(unsigned wanted) {
  return __popc(wanted & ((1u << lane_id()) - 1));
}

// Threads of a block of kThreads that want something, before this thread and in all.
struct Count {
  int before, all;
};
template <int kThreads>
__device__ __forceinline__ Count count_in_block(bool wants) {
  __shared__ int of_warps[kThreads / 32];
  const unsigned wanted = __ballot_sync(kAllLanes, wants);
  __syncthreads();  // the last result has been read
  if (lane_id() == 0) of_warps[warp_id()] = __popc(wanted);
  __syncthreads();
  Count count{lanes_before(wanted), 0};
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp < warp_id()) count.before += of_warps[warp];
    count.all += of_warps[warp];
  }
  return count;
}

// Counts this block. True in the last of `blocks` to arrive, by default all of the kernel's, which sees what all others
// wrote before; sets the counter, which must be 0 at first, back to 0.
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(counter, 1u) == blocks - 1;
    if (last) {
      *counter = 0;
      __threadfence_system();
    }
  }
  __syncthreads();
  return last;
}
__device__ __forceinline__ bool arrives_last(unsigned* counter) { return arrives_last(counter, gridDim.x); }

}  // namespace pkb
