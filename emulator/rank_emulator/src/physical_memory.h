// libcuda: what handles of virtual memory management stand for.
#pragma once

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "runtime_cuda.h"
#include "runtime_ranks.h"

namespace pkb::emulator {

constexpr uint64_t kGranularity = 2 << 20;  // as GPUs have

// Memory of several GPUs under the same addresses.
struct MulticastObject {
  struct Binding {
    int rank;
    uint64_t at, bytes;     // in the object
    PhysicalMemory* memory;  // null: of the GPU's memory that lies at `from`
    uint64_t from;          // in the memory, or an own address
  };
  size_t gpus;
  std::vector<int> added;
  std::vector<Binding> bindings;
};

// A file that mappings share, or a multicast object, which has a file as well by which others are handed it.
struct PhysicalMemory {
  PhysicalMemory(int file_, int rank_, uint64_t bytes_, char* known_, uint64_t region_, const CUmemAllocationProp& properties_)
      : file(file_), rank(rank_), bytes(bytes_), known(known_), region(region_), properties(properties_), written(bytes_ / 8) {}
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;
  ~PhysicalMemory() {
    if (known) munmap(known, bytes);
    close(file);
  }

  const int file;
  const int rank;
  const uint64_t bytes;
  char* const known;              // where the detector knows it; no program sees this address. Null: it is a multicast object
  const uint64_t region;
  const CUmemAllocationProp properties;
  std::vector<uint8_t> written;   // a bit for each byte, as of Mapping
  int references = 1;             // handles, mappings, and bindings to multicast objects
  std::unique_ptr<MulticastObject> multicast;
};

template <class F>
CUresult on_rank(F f) {
  RankState* const rank = calling_rank();
  if (!rank) return CUDA_ERROR_NOT_INITIALIZED;
  if (rank->world->failed()) return CUDA_ERROR_LAUNCH_FAILED;
  return f(*rank, shared_state(*rank->world));
}

inline PhysicalMemory* memory_of(SharedState& state, CUmemGenericAllocationHandle handle) {
  const auto found = state.physical.find(reinterpret_cast<PhysicalMemory*>(handle));
  return found == state.physical.end() ? nullptr : found->first;
}

// ---- runtime_cuda_multicast.cpp ----
// Lets kernels use a mapping of a multicast object, as far as all GPUs have memory bound to it.
void show_multicast(World& world, uint64_t begin, const VirtualMapping& mapping);
// Gives the memory back that is bound to an object.
void unbind_all(RankState& rank, SharedState& state, MulticastObject& object);
// ---- runtime_cuda_vmm.cpp ----
void let_go(RankState& rank, SharedState& state, PhysicalMemory* memory);

}  // namespace pkb::emulator
