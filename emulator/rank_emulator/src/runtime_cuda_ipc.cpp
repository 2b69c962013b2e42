// libcudart: memory of another rank, by handles that hosts exchange.
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

// The content of a cudaIpcMemHandle_t. All ranks see memory at the same address.
struct MemoryHandle {
  uint64_t magic, address, region;
  int rank;
};
constexpr uint64_t kMagic = 0x706b622d6970632d;
static_assert(sizeof(MemoryHandle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

// Of the whole allocation, wherever in it the pointer is: a peer that opens it gets its beginning.
PKB_CUDART cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return with_rank([&](RankState& rank) {
    const Extent* const extent = rank.world->engine.memory.find_seen(reinterpret_cast<uint64_t>(pointer), 1);
    if (!extent || !extent->on_gpu || extent->rank != rank.rank) return cudaErrorInvalidValue;
    const MemoryHandle content{kMagic, gpu_address(extent->begin), extent->region, rank.rank};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &content, sizeof content);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  return with_rank([&](RankState& rank) {
    MemoryHandle content;
    std::memcpy(&content, &handle, sizeof content);
    if (!pointer || content.magic != kMagic || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    if (content.rank == rank.rank || rank.world->one_process) return cudaErrorDeviceUninitialized;  // a process cannot open its own
    const Extent* const extent = rank.world->engine.memory.find_seen(content.address, 1);
    if (!extent || extent->region != content.region) return cudaErrorMapBufferObjectFailed;
    *pointer = reinterpret_cast<void*>(content.address);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return with_rank([&](RankState& rank) {
    const Extent* const extent = rank.world->engine.memory.find_seen(reinterpret_cast<uint64_t>(pointer), 1);
    return extent && extent->rank == rank.rank ? cudaErrorInvalidValue : cudaSuccess;
  });
}
