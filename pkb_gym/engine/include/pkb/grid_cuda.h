// All blocks of a kernel as one team: they meet, and form prefix sums over blocks, within one launch.
//
//   const pkb::Grid grid(comm.scratch<char>(pkb::kGridScratch));   // 32 KiB that are zero at first, and of no one else
//   grid.meet();                                                    // what any block wrote before is visible to all
//   const pkb::Before sums = grid.sums_before<kThreads>(count, turn);
//
// All blocks must be resident at once (pkb::resident_blocks), at most kMaxBlocks. Threads of a block call the functions
// together. Bound: latency; a meeting costs one atomic operation of each block on one word, and a load that follows it.
//
// The meeting is the barrier of a word whose highest bit changes each time, so that it needs no reset and takes grids of
// any size in turn; sums follow "Prefix sums and their applications" (Blelloch 1990), over blocks by one level.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/comm.h"
#include "pkb/teams_cuda.h"

namespace pkb {

constexpr uint64_t kGridScratch = 32 << 10;  // where pkb/ragged_cuda.h leaves room for it in scratch

// Sums of all blocks before this one, and of all blocks; equal in all threads.
struct Before {
  uint64_t before, all;
};

// Exclusive prefix sum of one number of each thread of a block of kThreads, and the block's sum.
template <int kThreads>
__device__ __forceinline__ Before sums_before_thread(uint64_t x) {
  __shared__ uint64_t of_warps[kThreads / 32];
  uint64_t sum = x;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane_id() >= apart) sum += other;
  }
  __syncthreads();  // the last sums have been read
  if (lane_id() == 31) of_warps[warp_id()] = sum;
  __syncthreads();
  Before result{sum - x, 0};
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp < warp_id()) result.before += of_warps[warp];
    result.all += of_warps[warp];
  }
  return result;
}

class Grid {
 public:
  __device__ explicit Grid(char* memory)
      : word_(reinterpret_cast<uint32_t*>(memory)), sums_(reinterpret_cast<uint64_t*>(memory + 1024)) {}

  // All blocks meet.
  __device__ __forceinline__ void meet() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t add = blockIdx.x == 0 ? kFlip - (gridDim.x - 1) : 1;
      uint32_t before, now;
      asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(word_), "r"(add) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word_) : "memory");
      } while (((before ^ now) & kFlip) == 0);
    }
    __syncthreads();
  }

  // Sums of one number of each block, that of its thread 0; also a meeting. Successive calls take turns 0, 1, 0, ...,
  // within a kernel, and the first of a kernel comes behind a meeting or is the only one of its turn.
  template <int kThreads>
  __device__ __forceinline__ Before sums_before(uint64_t of_block, int turn) const {
    uint64_t* sums = sums_ + turn % 2 * kMaxBlocks;
    if (threadIdx.x == 0) sums[blockIdx.x] = of_block;
    meet();
    Before mine{0, 0};
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
      const uint64_t sum = __ldcg(sums + block);
      mine.all += sum;
      if (block < blockIdx.x) mine.before += sum;
    }
    const auto add = [](uint64_t a, uint64_t b) { return a + b; };
    mine.before = reduce_block<kThreads>(mine.before, add);
    mine.all = reduce_block<kThreads>(mine.all, add);
    return mine;
  }

 private:
  static constexpr uint32_t kFlip = 1u << 31;
  uint32_t* word_;
  uint64_t* sums_;  // two halves of kMaxBlocks
};

}  // namespace pkb
