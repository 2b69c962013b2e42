// The symmetric heap of the harness: a file that all ranks map, and on GPUs a segment of each rank's own.
// Included by harness.cpp alone.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include <tvm/ffi/container/tensor.h>

#include "pkb/comm.h"

#ifdef PKB_CUDA
#include <cuda_runtime.h>
#endif

namespace {

using std::string;

constexpr uint64_t kPage = 4096;

[[noreturn]] void fail(const string& what) { throw std::runtime_error(what); }

void sleep_us(uint64_t us) {
  const timespec nap{time_t(us / 1000000), long(us % 1000000 * 1000)};
  nanosleep(&nap, nullptr);
}

int device_index = 0;  // of this process's GPU

// The first page of the heap file: where ranks meet.
struct Meeting {
  std::atomic<uint64_t> begun[pkb::kMaxRanks];  // meetings that a rank has reached
#ifdef PKB_CUDA
  cudaIpcMemHandle_t handles[pkb::kMaxRanks];
#endif

  void meet(int rank, int world_size) {
    const uint64_t count = begun[rank].load(std::memory_order_relaxed) + 1;
    begun[rank].store(count, std::memory_order_release);
    for (int r = 0; r < world_size; ++r) {
      while (begun[r].load(std::memory_order_acquire) < count) sleep_us(20);
    }
  }
};
static_assert(sizeof(Meeting) <= kPage);

#ifdef PKB_CUDA
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(string(what) + ": " + cudaGetErrorString(error));
}
#define CHECK(call) check((call), #call)
constexpr DLDeviceType kDeviceType = kDLCUDA;
void fill(void* to, int byte, uint64_t bytes) { CHECK(cudaMemset(to, byte, bytes)); }
void copy(void* to, const void* from, uint64_t bytes) { CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault)); }
void finish() { CHECK(cudaDeviceSynchronize()); }
#else
constexpr DLDeviceType kDeviceType = kDLCPU;
void fill(void* to, int byte, uint64_t bytes) { std::memset(to, byte, bytes); }
void copy(void* to, const void* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
void finish() {}
#endif

// The symmetric heap, as far as one process sees it: control pages in main memory, a segment for each rank.
struct Heap {
  Meeting* meeting;
  char* control;  // a page for each rank
  char* segments[pkb::kMaxRanks];
};

Heap map_heap(const char* path, int world_size, uint64_t segment_bytes) {
  const int fd = open(path, O_RDWR);
  if (fd < 0) fail(string("cannot open ") + path);
#ifdef PKB_CUDA
  const uint64_t bytes = kPage * (1 + world_size);
#else
  const uint64_t bytes = kPage * (1 + world_size) + segment_bytes * world_size;
#endif
  if (ftruncate(fd, off_t(bytes))) fail("the heap file cannot be made as large as the heap");
  char* base = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (base == MAP_FAILED) fail("the heap cannot be mapped");
  close(fd);
  Heap heap{reinterpret_cast<Meeting*>(base), base + kPage, {}};
#ifndef PKB_CUDA
  for (int r = 0; r < world_size; ++r) heap.segments[r] = base + kPage * (1 + world_size) + r * segment_bytes;
#endif
  return heap;
}

#ifdef PKB_CUDA
// Allocates the rank's own segment on its GPU (ranks share GPUs where there are fewer) and maps its peers'.
void share_segments(Heap& heap, int rank, int world_size, uint64_t segment_bytes) {
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus));
  device_index = rank % gpus;
  CHECK(cudaSetDevice(device_index));
  CHECK(cudaHostRegister(heap.control, kPage * world_size, cudaHostRegisterMapped));
  void* own = nullptr;
  CHECK(cudaMalloc(&own, segment_bytes));
  CHECK(cudaMemset(own, 0, segment_bytes));
  CHECK(cudaIpcGetMemHandle(&heap.meeting->handles[rank], own));
  CHECK(cudaDeviceSynchronize());
  heap.meeting->meet(rank, world_size);
  for (int r = 0; r < world_size; ++r) {
    void* segment = own;
    if (r != rank) {
      CHECK(cudaIpcOpenMemHandle(&segment, heap.meeting->handles[r], cudaIpcMemLazyEnablePeerAccess));
    }
    heap.segments[r] = static_cast<char*>(segment);
  }
}
#endif

}  // namespace
