// Stable partition of items by the rank, or any of a few classes, that they belong to: every item learns its place in a
// list by class, in which items of a class keep their order. One kernel, two reads of what tells the class.
//
//   pkb::partition<kThreads>(grid, table, items, classes,
//       [&](uint64_t item) { return owner; }, [&](uint64_t item, int owner, uint64_t place) { order[place] = item; },
//       begins);
//
// Blocks take consecutive chunks. Each counts its own by ballots, all blocks meet (pkb/grid_cuda.h), and each adds up the
// counts of those before it, as in a radix sort's pass (Merrill and Grimshaw 2011). Bound: memory, two reads of items.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/comm.h"
#include "pkb/grid_cuda.h"
#include "pkb/teams_cuda.h"

namespace pkb {

constexpr int kMaxClasses = kMaxRanks;
constexpr uint64_t kPartitionBytes = uint64_t(kMaxClasses) * kMaxBlocks * sizeof(uint32_t);  // of the table

// Where classes begin in the list, and, in the last place, how many items there are; in shared memory.
struct ClassBegins {
  uint64_t at[kMaxClasses + 1];
};

// Called by all threads of all blocks, of kThreads each. `table` is kPartitionBytes of device memory that this kernel's
// blocks alone use. class_of(item) is a number from 0 to classes - 1. On return `begins` is filled in every block.
template <int kThreads, class ClassOf, class Put>
__device__ __forceinline__ void partition(const Grid& grid, uint32_t* table, uint64_t items, int classes,
                                          const ClassOf& class_of, const Put& put, ClassBegins& begins) {
  constexpr int kWarps = kThreads / 32;
  __shared__ uint32_t counts[kMaxClasses], of_warps[kWarps][kMaxClasses];
  __shared__ uint64_t next[kMaxClasses];
  const int thread = int(threadIdx.x), warp = warp_id(), lane = lane_id();
  const uint64_t begin = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;

  if (thread < kMaxClasses) counts[thread] = 0;
  __syncthreads();
  uint32_t own = 0;  // lane c counts class c
  for (uint64_t first = begin + warp * 32; first < end; first += kThreads) {
    const int which = first + lane < end ? class_of(first + lane) : -1;
    for (int c = 0; c < classes; ++c) {
      const unsigned lanes = __ballot_sync(kAllLanes, which == c);
      if (lane == c) own += __popc(lanes);
    }
  }
  if (lane < classes && own) atomicAdd(counts + lane, own);
  __syncthreads();
  if (thread < classes) table[thread * kMaxBlocks + blockIdx.x] = counts[thread];
  grid.meet();

  for (int c = warp; c < classes; c += kWarps) {
    uint32_t before = 0, all = 0;
    for (unsigned block = lane; block < gridDim.x; block += 32) {
      const uint32_t count = __ldcg(table + c * kMaxBlocks + block);
      all += count;
      if (block < blockIdx.x) before += count;
    }
    before = __reduce_add_sync(kAllLanes, before);
    all = __reduce_add_sync(kAllLanes, all);
    if (lane == 0) {
      next[c] = before;
      begins.at[c + 1] = all;
    }
  }
  __syncthreads();
  if (thread == 0) {
    begins.at[0] = 0;
    for (int c = 0; c < classes; ++c) {
      next[c] += begins.at[c];
      begins.at[c + 1] += begins.at[c];
    }
  }
  __syncthreads();

  for (uint64_t first = begin; first < end; first += kThreads) {
    const uint64_t item = first + thread;
    const int which = item < end ? class_of(item) : -1;
    int before = 0;
    for (int c = 0; c < classes; ++c) {
      const unsigned lanes = __ballot_sync(kAllLanes, which == c);
      if (which == c) before = lanes_before(lanes);
      if (lane == c) of_warps[warp][c] = __popc(lanes);
    }
    __syncthreads();
    if (which >= 0) {
      uint64_t place = next[which] + before;
      for (int other = 0; other < warp; ++other) place += of_warps[other][which];
      put(item, which, place);
    }
    __syncthreads();
    if (thread < classes) {
      for (int other = 0; other < kWarps; ++other) next[thread] += of_warps[other][thread];
    }
    __syncthreads();
  }
}

}  // namespace pkb
