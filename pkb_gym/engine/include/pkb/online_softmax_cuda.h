// The sum of exponentials of a row that is read once, in any number of parts: of threads, of warps, of vocabulary shards
// on different ranks. A part is its largest number and the sum of exponentials relative to it; parts are joined in any
// order, and log(sum) + most is the logarithm of the normaliser.
//
// Bound: memory, one read of a row; from bfloat16 numbers on H200, an exponential each takes a third of that.
//
// Algorithm: M. Milakov, N. Gimelshein, Online Normalizer Calculation for Softmax, arXiv:1805.02867, algorithm 3.
#pragma once

#include <cuda_runtime.h>

#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

struct SoftmaxSum {
  float most = -kInfinity, sum = 0.0f;  // of nothing yet

  // Adds some numbers; those that are -infinity add nothing.
  template <int kNumbers>
  __device__ __forceinline__ void add(const float (&x)[kNumbers]) {
    float largest = x[0];
#pragma unroll
    for (float number : x) largest = fmaxf(largest, number);
    raise(largest);
    if (most == -kInfinity) return;
#pragma unroll
    for (float number : x) sum += __expf(number - most);
  }

  __device__ __forceinline__ void join(const SoftmaxSum& other) {
    raise(other.most);
    if (other.most != -kInfinity) sum += other.sum * __expf(other.most - most);
  }

  __device__ __forceinline__ float log() const { return most + logf(sum); }

 private:
  __device__ __forceinline__ void raise(float to) {
    if (to <= most) return;
    if (most != -kInfinity) sum *= __expf(most - to);
    most = to;
  }
};

// The parts of all threads of a warp joined, in every thread.
__device__ __forceinline__ SoftmaxSum join_parts(const Warp&, SoftmaxSum part) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    SoftmaxSum other;
    other.most = __shfl_xor_sync(kAllLanes, part.most, apart);
    other.sum = __shfl_xor_sync(kAllLanes, part.sum, apart);
    part.join(other);
  }
  return part;
}

// The same for a block of whole warps.
__device__ __forceinline__ SoftmaxSum join_parts(const Block&, SoftmaxSum part) {
  __shared__ float mosts[32], sums[32];
  part = join_parts(Warp(), part);
  __syncthreads();  // the last result has been read
  if (lane_id() == 0) {
    mosts[warp_id()] = part.most;
    sums[warp_id()] = part.sum;
  }
  __syncthreads();
  SoftmaxSum all;
  if (lane_id() < int(blockDim.x) / 32) {
    all.most = mosts[lane_id()];
    all.sum = sums[lane_id()];
  }
  return join_parts(Warp(), all);
}

}  // namespace pkb
