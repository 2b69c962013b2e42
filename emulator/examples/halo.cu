// Halo exchange: a program of processes that open each other's memory by CUDA IPC, and smooth a field along a line.
// check-ranks: --ranks 3
// MISTAKE: a rank stores its edge at the neighbour before that one has used the edge of the step before.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "signals.cuh"

#define CHECK(call)                                                                              \
  if (const cudaError_t error = (call); error != cudaSuccess) {                                  \
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));          \
    std::exit(1);                                                                                \
  }

constexpr int kCells = 64, kSteps = 6;

struct Part {                        // of the line, in memory of one rank
  float cells[kCells];
  float edges[2];                    // of the neighbours
  unsigned has_edge[2], is_used[2];  // the step of the edge that has come, and of the last one that has been used
};

__global__ void smooth(Part* own, Part* left, Part* right) {
  __shared__ float cells[kCells + 2];
  const int i = threadIdx.x + 1;
  Part* const sides[] = {left, right};
  cells[i] = own->cells[i - 1];
  for (unsigned step = 1; step <= kSteps; ++step) {
    __syncthreads();
    if (threadIdx.x < 2 && sides[threadIdx.x]) {
      const int side = threadIdx.x;
      Part* const other = sides[side];
#ifndef MISTAKE
      wait(&own->is_used[side], step - 1);
#endif
      other->edges[1 - side] = cells[side ? kCells : 1];
      store_release(&other->has_edge[1 - side], step);
      wait(&own->has_edge[side], step);
      cells[side ? kCells + 1 : 0] = own->edges[side];
      store_release(&other->is_used[1 - side], step);
    } else if (threadIdx.x < 2) {
      cells[threadIdx.x ? kCells + 1 : 0] = 0;
    }
    __syncthreads();
    const float mean = (cells[i - 1] + cells[i] + cells[i + 1]) / 3;
    __syncthreads();
    cells[i] = mean;
  }
  own->cells[i - 1] = cells[i];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(cudaSetDevice(rank));
  Part* own = nullptr;
  CHECK(cudaMalloc(&own, sizeof(Part)));
  Part start{};
  for (int i = 0; i < kCells; ++i) start.cells[i] = float((rank * kCells + i) * 7 % 13);
  CHECK(cudaMemcpy(own, &start, sizeof start, cudaMemcpyHostToDevice));
  cudaIpcMemHandle_t mine;
  CHECK(cudaIpcGetMemHandle(&mine, own));
  std::vector<cudaIpcMemHandle_t> handles(ranks);
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, handles.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
  const auto open = [&](int peer) {
    void* opened = nullptr;
    if (peer >= 0 && peer < ranks) CHECK(cudaIpcOpenMemHandle(&opened, handles[peer], cudaIpcMemLazyEnablePeerAccess));
    return static_cast<Part*>(opened);
  };
  Part *const left = open(rank - 1), *const right = open(rank + 1);
  smooth<<<1, kCells>>>(own, left, right);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(start.cells, own->cells, sizeof start.cells, cudaMemcpyDeviceToHost));
  MPI_Barrier(MPI_COMM_WORLD);  // nobody reads or writes this memory any more

  // The same on the host, of the whole line.
  std::vector<float> line(ranks * kCells + 2);
  for (int i = 0; i < ranks * kCells; ++i) line[i + 1] = float(i * 7 % 13);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> next(line.size());
    for (size_t i = 1; i + 1 < line.size(); ++i) next[i] = (line[i - 1] + line[i] + line[i + 1]) / 3;
    line = next;
  }
  int wrong = 0;
  for (int i = 0; i < kCells; ++i) wrong += std::abs(start.cells[i] - line[rank * kCells + i + 1]) > 1e-4f;
  if (left) CHECK(cudaIpcCloseMemHandle(left));
  if (right) CHECK(cudaIpcCloseMemHandle(right));
  CHECK(cudaFree(own));
  MPI_Finalize();
  if (wrong) std::printf("%d cells are wrong\n", wrong);
  return wrong ? 1 : 0;
}
