// A program of two sources that call each other's functions and use each other's variables on the GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "parts.cuh"

// Its name is that of another function in the other source.
static __device__ __noinline__ int own(int x) { return x + 1; }

__device__ __noinline__ void take_turns(int* words) {
  if (threadIdx.x == 0) words[0] = 1;
#ifndef MISTAKE
  __syncthreads();
#endif
  if (threadIdx.x == 40) words[1] = words[0];
}

__global__ void first(int* out) {
  const int i = threadIdx.x;
  out[i] = own(of_neighbour(scaled(i))) + chosen(i) + counts[i] + factor;
  if (i == 0) printf("first: %s\n", "one");
}

int main(int argc, char** argv) {
  int *out, host[kThreads], three = 3;
  if (cudaMalloc(&out, sizeof host) != cudaSuccess || cudaMemcpyToSymbol(factor, &three, sizeof three) != cudaSuccess) return 2;
  launch_second(out, 0);
  first<<<1, kThreads>>>(out);
  if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return 3;
  for (int i = 0; i < kThreads; ++i) {
    const int next = (i + 1) % kThreads, expected = 3 * next + 1 + 10 * i + next + 3;
    if (host[i] != expected) return printf("%d: %d instead of %d\n", i, host[i], expected), 4;
  }
  launch_second(out, 1);
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 5;
}
