// libcudart: memory and events of another rank, by handles that hosts exchange.
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

struct EventHandle {
  uint64_t magic, event;
  int rank;
};
static_assert(sizeof(EventHandle) <= sizeof(cudaIpcEventHandle_t));

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

// An event that ranks share: each may record it on its own streams, and wait for the record that any has made last.
PKB_CUDART cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return with_rank([&](RankState& rank) {
    const Event* const own = event_of(rank, event);
    if (!own) return cudaErrorInvalidResourceHandle;
    const EventHandle content{kMagic, own->id, rank.rank};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &content, sizeof content);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return with_rank([&](RankState& rank) {
    EventHandle content;
    std::memcpy(&content, &handle, sizeof content);
    if (content.magic != kMagic || size_t(content.rank) >= rank.world->ranks.size()) return cudaErrorInvalidValue;
    for (const auto& each : rank.world->ranks[size_t(content.rank)]->events) {
      if (each->id != content.event) continue;
      rank.opened.insert(each.get());
      *event = reinterpret_cast<cudaEvent_t>(each.get());
      return cudaSuccess;
    }
    return cudaErrorInvalidResourceHandle;
  });
}
