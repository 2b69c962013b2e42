// Flags between ranks, as libraries write them.
#pragma once
#include <cuda_runtime.h>

__device__ inline void store_release(unsigned* flag, unsigned value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); }
__device__ inline void store_relaxed(unsigned* flag, unsigned value) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory"); }
__device__ inline unsigned load_acquire(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void wait(const unsigned* flag, unsigned least) {
  while (load_acquire(flag) < least) {
  }
}

// Pointers of all ranks as a kernel's argument.
template <class T, int N>
struct Peers {
  T* of[N];
  __device__ T* operator[](int rank) const { return of[rank]; }
};
template <int N, class T>
Peers<T, N> peers(T* const* pointers) {
  Peers<T, N> all;
  for (int rank = 0; rank < N; ++rank) all.of[rank] = pointers[rank];
  return all;
}

// All ranks' blocks of this number meet; `slot` numbers the barriers of a kernel. Threads of the block do, too.
template <int N>
__device__ void meet(const Peers<unsigned, N>& flags, int rank, int slot, unsigned epoch) {
  __syncthreads();
  if (threadIdx.x < N) {
    store_release(flags[threadIdx.x] + slot * N + rank, epoch);
    wait(flags[rank] + slot * N + threadIdx.x, epoch);
  }
  __syncthreads();
}
