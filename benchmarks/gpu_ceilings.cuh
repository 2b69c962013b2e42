// The kernels of gpu_ceilings.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace {

constexpr int MAX_GPUS = 16;
constexpr int THREADS = 512;
constexpr int UNROLL = 8;              // 16-byte loads that a thread has in flight
constexpr int FMA_THREADS = 256, CHAINS = 16;
constexpr int SIGNAL_ROUNDS = 4000;
constexpr int SLOT = 16;  // 8-byte words between flags: a cache line each

struct Part {
  uint4* to;
  const uint4* from;
};

struct Parts {
  Part part[MAX_GPUS];
  int count;
};

struct Flags {
  uint64_t* of[MAX_GPUS];  // a slot for each GPU, in the memory of each GPU
};

__global__ void fill(uint32_t* to, size_t words, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < words; i += size_t(gridDim.x) * blockDim.x) {
    uint32_t x = uint32_t(i) * 2654435761u ^ seed;  // data that does not compress
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    to[i] = x;
  }
}

// Blocks are dealt out to the parts in turn; `words` 16-byte words of each are copied.
__global__ void __launch_bounds__(THREADS) copy(const __grid_constant__ Parts parts, size_t words) {
  const Part part = parts.part[blockIdx.x % parts.count];
  const size_t workers = size_t(gridDim.x / parts.count) * THREADS;
  size_t at = size_t(blockIdx.x / parts.count) * THREADS + threadIdx.x;
  for (; at + (UNROLL - 1) * workers < words; at += UNROLL * workers) {
    uint4 held[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) held[u] = part.from[at + u * workers];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) part.to[at + u * workers] = held[u];
  }
  for (; at < words; at += workers) part.to[at] = part.from[at];
}

__device__ uint4 load_past_l1(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  return v;
}

__global__ void __launch_bounds__(THREADS) read(const uint4* from, size_t words, int passes, uint32_t* sink) {
  const size_t workers = size_t(gridDim.x) * THREADS;
  uint32_t seen = 0;
  for (int pass = 0; pass < passes; ++pass) {
    size_t at = size_t(blockIdx.x) * THREADS + threadIdx.x;
    for (; at + (UNROLL - 1) * workers < words; at += UNROLL * workers) {
      uint4 held[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) held[u] = load_past_l1(from + at + u * workers);
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) seen ^= held[u].x ^ held[u].y ^ held[u].z ^ held[u].w;
    }
    for (; at < words; at += workers) seen ^= load_past_l1(from + at).x;
  }
  if (seen == 0x9e3779b9u) *sink = seen;  // so that the loads are not dropped
}

template <class T>
__device__ T from_float(float x) { return T(x); }
template <>
__device__ __half2 from_float<__half2>(float x) { return __float2half2_rn(x); }
template <>
__device__ __nv_bfloat162 from_float<__nv_bfloat162>(float x) { return __float2bfloat162_rn(x); }

__device__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ __half2 multiply_add(__half2 a, __half2 b, __half2 c) { return __hfma2(a, b, c); }
__device__ __nv_bfloat162 multiply_add(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __hfma2(a, b, c);
}

template <class T>
__global__ void __launch_bounds__(FMA_THREADS) multiply_adds(T* sink, float factor, int rounds) {
  const T a = from_float<T>(factor), b = from_float<T>(1 - factor);
  T chain[CHAINS];
#pragma unroll
  for (int k = 0; k < CHAINS; ++k) chain[k] = from_float<T>(0.001f * float(threadIdx.x + k));
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) chain[k] = multiply_add(chain[k], a, b);
  }
  T sum = chain[0];
#pragma unroll
  for (int k = 1; k < CHAINS; ++k) sum = multiply_add(sum, a, chain[k]);
  sink[blockIdx.x * FMA_THREADS + threadIdx.x] = sum;
}

__device__ void store_release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ uint64_t load_acquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// One thread on each of two GPUs: the one that serves writes a number into the other's memory and waits for the answer.
__global__ void ping_pong(uint64_t* mine, uint64_t* theirs, uint64_t base, bool serves) {
  for (uint64_t number = base + 1; number <= base + SIGNAL_ROUNDS; ++number) {
    if (serves) store_release(theirs, number);
    while (load_acquire(mine) < number) {}
    if (!serves) store_release(theirs, number);
  }
}

// One block on each GPU: thread t signals GPU t that this one has come, and waits until GPU t has come.
__global__ void barriers(const __grid_constant__ Flags flags, int me, int gpus, uint64_t base) {
  const int peer = threadIdx.x;
  for (uint64_t number = base + 1; number <= base + SIGNAL_ROUNDS; ++number) {
    if (peer < gpus && peer != me) {
      store_release(flags.of[peer] + me * SLOT, number);
      while (load_acquire(flags.of[me] + peer * SLOT) < number) {}
    }
    __syncthreads();
  }
}

__global__ void nothing() {}

}  // namespace
