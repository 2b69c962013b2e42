// Pairs of programs for test_pairs.py: a body that is right, and with one line changed is wrong.
//
// Above each stand what the right one does, and `// wrong: KIND: words`: class of the finding (unsynchronised, weak_order),
// or `deadlock`, or `value` for a CHECK that fails in some order of execution, and words of the message.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// ---- memory of a rank: words of data, flags, and what a program computes ----

struct Rank {
  unsigned* base[4];
  int rank, size;
  __host__ __device__ int next() const { return (rank + 1) % size; }
  __host__ __device__ int previous() const { return (rank + size - 1) % size; }
  __host__ __device__ unsigned* data(int of) const { return base[of]; }
  __host__ __device__ unsigned* data() const { return base[rank]; }
  __host__ __device__ unsigned* flag(int of) const { return base[of] + 0x2000; }
  __host__ __device__ unsigned* flag() const { return base[rank] + 0x2000; }
  __host__ __device__ unsigned* out() const { return base[rank] + 0x3000; }
  __host__ __device__ unsigned* failed() const { return base[rank] + 0x3fff; }  // line of a failed CHECK
};

// ---- the two variants ----

#define RIGHT(...) \
  if constexpr (right) { __VA_ARGS__; }
#define WRONG(...) \
  if constexpr (!right) { __VA_ARGS__; }
#define CHECK(condition) \
  if (!(condition)) atomicExch(r.failed(), __LINE__)
#define ENTRY(name, statement)                                                                    \
  extern "C" int name(unsigned* const* all, int rank, int size, [[maybe_unused]] cudaStream_t stream) { \
    Rank r{{}, rank, size};                                                                       \
    for (int i = 0; i < size; ++i) r.base[i] = all[i];                                            \
    statement;                                                                                    \
    return int(cudaGetLastError());                                                               \
  }

// A kernel of two ranks, one of four, and one of a single rank.
#define PAIR(name, blocks, threads)                                            \
  template <bool right> __device__ void name(const Rank& r);                   \
  template <bool right> __global__ void name##_kernel(Rank r) { name<right>(r); } \
  ENTRY(name##_right, (name##_kernel<true><<<blocks, threads, 0, stream>>>(r)))   \
  ENTRY(name##_wrong, (name##_kernel<false><<<blocks, threads, 0, stream>>>(r)))  \
  template <bool right> __device__ void name([[maybe_unused]] const Rank& r)
#define PAIR_OF_FOUR(name, blocks, threads) PAIR(name, blocks, threads)
#define PAIR_OF_ONE(name, blocks, threads) PAIR(name, blocks, threads)

// Host code of two ranks, which launches kernels.
#define PAIR_OF_HOST(name)                                        \
  template <bool right> static void name(const Rank& r, cudaStream_t stream); \
  ENTRY(name##_right, name<true>(r, stream))                      \
  ENTRY(name##_wrong, name<false>(r, stream))                     \
  template <bool right> static void name([[maybe_unused]] const Rank& r, [[maybe_unused]] cudaStream_t stream)

// ---- accesses by their names in PTX ----

#define STORE(name, order)                                                    \
  __device__ inline void name(unsigned* to, unsigned value) {                 \
    asm volatile("st." order ".u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"); \
  }
#define LOAD(name, order)                                                     \
  __device__ inline unsigned name(const unsigned* from) {                     \
    unsigned value;                                                           \
    asm volatile("ld." order ".u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory"); \
    return value;                                                             \
  }
#define ATOMIC(name, operation)                                               \
  __device__ inline unsigned name(unsigned* to, unsigned value) {             \
    unsigned before;                                                          \
    asm volatile("atom." operation " %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(value) : "memory"); \
    return before;                                                            \
  }
#define FENCE(name, order) \
  __device__ inline void name() { asm volatile("fence." order ";" ::: "memory"); }

STORE(store_release, "release.sys")
STORE(store_relaxed, "relaxed.sys")
STORE(store_release_gpu, "release.gpu")
STORE(store_relaxed_gpu, "relaxed.gpu")
LOAD(load_acquire, "acquire.sys")
LOAD(load_relaxed, "relaxed.sys")
LOAD(load_acquire_gpu, "acquire.gpu")
LOAD(load_relaxed_gpu, "relaxed.gpu")
LOAD(load_nc, "global.nc")
ATOMIC(add_release, "add.release.sys.u32")
ATOMIC(add_relaxed, "add.relaxed.sys.u32")
ATOMIC(add_both, "add.acq_rel.sys.u32")
ATOMIC(add_both_gpu, "add.acq_rel.gpu.u32")
ATOMIC(add_relaxed_gpu, "add.relaxed.gpu.u32")
ATOMIC(exchange_release, "exch.release.sys.b32")
ATOMIC(exchange_acquire, "exch.acquire.sys.b32")
ATOMIC(exchange_relaxed, "exch.relaxed.sys.b32")
FENCE(fence_sys, "acq_rel.sys")
FENCE(fence_gpu, "acq_rel.gpu")

__device__ inline unsigned swap_acquire(unsigned* to, unsigned expected, unsigned value) {
  unsigned before;
  asm volatile("atom.cas.acquire.sys.b32 %0, [%1], %2, %3;" : "=r"(before) : "l"(to), "r"(expected), "r"(value) : "memory");
  return before;
}
__device__ inline unsigned swap_relaxed(unsigned* to, unsigned expected, unsigned value) {
  unsigned before;
  asm volatile("atom.cas.relaxed.sys.b32 %0, [%1], %2, %3;" : "=r"(before) : "l"(to), "r"(expected), "r"(value) : "memory");
  return before;
}

__device__ inline void wait(const unsigned* flag, unsigned least) {
  while (load_acquire(flag) < least) {}
}
__device__ inline void wait_relaxed(const unsigned* flag, unsigned least) {
  while (load_relaxed(flag) < least) {}
}

// All ranks meet: each thread below the number of ranks signals one and waits for one. A block barrier on both sides.
__device__ inline void meet(const Rank& r, unsigned epoch, int slot = 0) {
  __syncthreads();
  if (threadIdx.x < r.size) {
    store_release(r.flag(threadIdx.x) + 64 + 4 * slot + r.rank, epoch);
    wait(r.flag() + 64 + 4 * slot + threadIdx.x, epoch);
  }
  __syncthreads();
}
