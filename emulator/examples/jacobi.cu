// Jacobi's method on a ring of GPUs: one thread drives them all, and copies carry the outer cells to the neighbours.
// check-ranks: --gpus 3
// MISTAKE: a GPU computes a step before the cells of its neighbours have come.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                              \
  if (const cudaError_t error = (call); error != cudaSuccess) {                                  \
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));          \
    std::exit(1);                                                                                \
  }

constexpr int kCells = 64, kSteps = 4;

__global__ void smooth(const float* from, float* to) {
  const int i = threadIdx.x + 1;
  to[i] = (from[i - 1] + from[i + 1]) / 2;
}

struct Gpu {
  float* cells[2];  // of a step and of the next one, with a cell of each neighbour around them
  cudaStream_t computes, copies;
  cudaEvent_t computed, copied[2];
};

int main() {
  int count;
  CHECK(cudaGetDeviceCount(&count));
  std::vector<Gpu> gpus(count);
  for (int i = 0; i < count; ++i) {
    Gpu& gpu = gpus[i];
    CHECK(cudaSetDevice(i));
    CHECK(cudaStreamCreateWithFlags(&gpu.computes, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&gpu.copies, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&gpu.computed, cudaEventDisableTiming));
    const std::vector<float> initial(kCells + 2, 1.0f);
    for (int turn = 0; turn < 2; ++turn) {
      CHECK(cudaEventCreateWithFlags(&gpu.copied[turn], cudaEventDisableTiming));
      CHECK(cudaMalloc(&gpu.cells[turn], initial.size() * sizeof(float)));
      CHECK(cudaMemcpy(gpu.cells[turn], initial.data(), initial.size() * sizeof(float), cudaMemcpyHostToDevice));
    }
  }
  for (int step = 0; step < kSteps; ++step) {
    const int now = step % 2, next = 1 - now;
    for (int i = 0; i < count; ++i) {
      Gpu &gpu = gpus[i], &left = gpus[(i + count - 1) % count], &right = gpus[(i + 1) % count];
      CHECK(cudaSetDevice(i));
      CHECK(cudaStreamWaitEvent(gpu.computes, gpu.copied[now], 0));
#ifndef MISTAKE
      CHECK(cudaStreamWaitEvent(gpu.computes, left.copied[now], 0));
      CHECK(cudaStreamWaitEvent(gpu.computes, right.copied[now], 0));
#endif
      smooth<<<1, kCells, 0, gpu.computes>>>(gpu.cells[now], gpu.cells[next]);
      CHECK(cudaEventRecord(gpu.computed, gpu.computes));
      CHECK(cudaStreamWaitEvent(gpu.copies, gpu.computed, 0));
      CHECK(cudaMemcpyAsync(left.cells[next] + kCells + 1, gpu.cells[next] + 1, sizeof(float), cudaMemcpyDefault, gpu.copies));
      CHECK(cudaMemcpyAsync(right.cells[next], gpu.cells[next] + kCells, sizeof(float), cudaMemcpyDefault, gpu.copies));
      CHECK(cudaEventRecord(gpu.copied[next], gpu.copies));
    }
  }
  for (int i = 0; i < count; ++i) {
    float found;
    CHECK(cudaSetDevice(i));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&found, gpus[i].cells[kSteps % 2] + 1, sizeof found, cudaMemcpyDeviceToHost));
    if (std::fabs(found - 1) > 1e-6f) return 1;
  }
  return 0;
}
