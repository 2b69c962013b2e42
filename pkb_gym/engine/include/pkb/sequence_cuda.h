// Where the positions ("times") of a sequence lie that is cut over the ranks of a group, as context parallelism does.
//
// Plain: rank w of W holds chunk w of W. Zigzag, which gives all ranks the same work under a causal mask: rank w holds
// chunks w and 2 W - 1 - w of 2 W, one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pkb {

struct SequenceCut {
  int ranks;
  int chunk;           // positions that lie together on a rank
  int chunks;          // of one rank: 1, or 2 in zigzag
  uint64_t per_chunk;  // 2^63 / chunk, rounded up: division by multiplication

  // Of `local_length` positions on each rank, an even number if in zigzag.
  __host__ __device__ static SequenceCut of(int ranks, int local_length, bool zigzag) {
    const int chunk = zigzag ? local_length / 2 : local_length;
    return {ranks, chunk, zigzag ? 2 : 1, uint64_t(INT64_MAX) / uint64_t(chunk) + 1};
  }

  __host__ __device__ int length() const { return ranks * chunks * chunk; }

  // The time at which a rank's chunk i begins.
  __host__ __device__ int begin(int place, int i) const { return (i ? 2 * ranks - 1 - place : place) * chunk; }

  // Which rank of the group holds a time, and where in its tensor.
  struct Spot {
    int place, position;
  };
  __device__ __forceinline__ Spot spot_of(int time) const {
    const int index = int(__umul64hi(2 * uint64_t(time), per_chunk)), offset = time - index * chunk;
    if (index < ranks) return {index, offset};
    return {2 * ranks - 1 - index, chunk + offset};
  }
};

}  // namespace pkb
