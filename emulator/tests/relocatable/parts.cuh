// What the two sources share: declarations, and code that both of them define.
#pragma once
#include <cuda_runtime.h>

constexpr int kThreads = 64;

extern __device__ int counts[kThreads];   // second.cu
extern __constant__ int factor;           // second.cu
extern __device__ int (*chosen)(int);     // second.cu
__device__ int scaled(int x);             // second.cu
__device__ void take_turns(int* words);   // first.cu
void launch_second(int* out, int mode);   // second.cu

// In both objects: one of them, with its shared memory, is left.
template <class T>
__device__ __noinline__ T of_neighbour(T value) {
  __shared__ T values[kThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  return values[(threadIdx.x + 1) % kThreads];
}
