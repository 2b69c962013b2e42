#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

// Flags of this file's own, in words of the signal pads: `pkb/symm.h` knows of no wait.
__device__ __forceinline__ void set_flag(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ void await_flag(const uint64_t* word, uint64_t value) {
  uint64_t reached;
  do {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(reached) : "l"(word) : "memory");
  } while (reached < value);
}

// Ranks meet, each block with the blocks of its number.
__device__ __forceinline__ void meet(const pkb::Device& comm, int phase) {
  const int other = int(threadIdx.x), slot = (phase * int(gridDim.x) + int(blockIdx.x)) * comm.world_size;
  __syncthreads();
  if (other < comm.world_size) {
    set_flag(comm.signal_word(slot + comm.rank, other), comm.epoch);
    await_flag(comm.signal_word(slot + other, comm.rank), comm.epoch);
  }
  __syncthreads();
}

__device__ __forceinline__ int64_t first() { return blockIdx.x * int64_t(blockDim.x) + threadIdx.x; }
__device__ __forceinline__ int64_t step() { return int64_t(gridDim.x) * blockDim.x; }

__device__ __forceinline__ float sum_at(bf16* own, int64_t i, const pkb::Device& comm) {
  float total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(own, r)[i]);
  return total;
}
