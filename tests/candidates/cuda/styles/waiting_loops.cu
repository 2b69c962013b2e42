// expect: passed
// Blocks wait for flags of blocks that begin after them, in many kinds of loops; then ranks meet and add up.
#include <cuda_bf16.h>
#include <cstdio>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kKinds = 16, kThreads = 64;
constexpr long long kForever = 200000000000ll;

__device__ uint32_t look(uint32_t* flag) {
  uint32_t seen;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  return seen;
}

__device__ void wait_in_a_way(int kind, uint32_t* flag, uint32_t epoch, uint32_t* word) {
  const int t = int(threadIdx.x), lane = t % 32;
  __shared__ uint32_t got;
  switch (kind) {
    case 0:  // longer and longer sleeps
      for (unsigned ns = 8; look(flag) < epoch; ns = ns < 512 ? 2 * ns : ns) __nanosleep(ns);
      break;
    case 1:  // a number of turns
      for (int turns = 0; look(flag) < epoch;) {
        if (++turns > 100000) __trap();
      }
      break;
    case 2: {  // the clock, in one thread
      const long long begin = clock64();
      while (t == 0 && look(flag) < epoch) {
        if (clock64() - begin > kForever) __trap();
      }
      break;
    }
    case 3:  // atomics that change nothing
      while (atomicAdd(flag, 0) < epoch) {}
      break;
    case 4:
      while (atomicCAS(flag, 0xffffffffu, 0) < epoch) {}
      break;
    case 5:
      while (atomicOr(flag, 0) < epoch) __nanosleep(20);
      break;
    case 6:
      while (__ballot_sync(~0u, lane == 3 && look(flag) < epoch)) {}
      break;
    case 7:
      while (__syncthreads_or(t == 5 && look(flag) < epoch)) {}
      break;
    case 8:
      while (!__syncthreads_and(look(flag) >= epoch)) {}
      break;
    case 9:
      while (__syncthreads_count(look(flag) >= epoch) < kThreads) {}
      break;
    case 10:
      while (__reduce_min_sync(~0u, lane == 31 ? look(flag) : epoch) < epoch) {}
      break;
    case 11:  // a turn takes its time
      for (;;) {
        const long long begin = clock64();
        if (look(flag) >= epoch) break;
        while (clock64() - begin < 3000) {}
      }
      break;
    case 12:  // a lock that others hold
      if (t == 0) {
        while (atomicExch(word, 1u) != 0) __nanosleep(50);
        const uint32_t seen = look(flag);
        atomicExch(word, 0u);
        if (seen < epoch) {
          while (look(flag) < epoch) {}
        }
      }
      break;
    case 13:  // the signal is given again in each turn
      do {
        if (t == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(epoch) : "memory");
      } while (look(flag) < epoch);
      break;
    case 14:  // complaints after a time
      for (long long begin = clock64(); look(flag) < epoch;) {
        if (clock64() - begin > kForever) {
          printf("still waiting\n");
          begin = clock64();
        }
      }
      break;
    default:  // one warp polls and counts the turns, the other waits for a barrier
      if (t < 32) {
        uint32_t turns = 0;
        do {
          if (lane == 0) got = ++turns;
          __syncwarp();
        } while (__shfl_sync(~0u, lane == 0 ? look(flag) : 0u, 0) < epoch);
      }
      __syncthreads();
      if (got == 0) __trap();
  }
  __syncthreads();
}

__global__ void wait_for_blocks(uint32_t* flags, uint32_t epoch) {
  const int kind = int(blockIdx.x) % kKinds;
  uint32_t* const flag = flags + 32 * kind;
  if (blockIdx.x < kKinds) {
    wait_in_a_way(kind, flag, epoch, flags + 32 * (kKinds + kind));
  } else if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
  }
}

__global__ void sum(const bf16* x, bf16* y, int n, pkb::Device c) {
  c.barrier_blocks(0);
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) {
    float s = 0;
    for (int r = 0; r < c.world_size; ++r) s += __bfloat162float(c.peer(x, r)[i]);
    y[i] = __float2bfloat16(s);
  }
  c.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto stream = cudaStream_t(comm.cuda_stream());
  wait_for_blocks<<<2 * kKinds, kThreads, 0, stream>>>(comm.scratch<uint32_t>(0), uint32_t(comm.epoch));
  sum<<<1, 64, 0, stream>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
