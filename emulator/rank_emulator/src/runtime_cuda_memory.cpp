// libcudart: allocations, copies, fills, variables.
#include <cstdlib>
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

constexpr uint64_t kPoisonedBytes = 64 << 20;  // of larger allocations the rest is zero

cudaError_t allocate(RankState& rank, void** pointer, size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > 64ull << 30) return cudaErrorMemoryAllocation;
  Mapping memory(bytes);
  std::memset(memory.data(), 0xff, std::min<uint64_t>(bytes, kPoisonedBytes));
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const uint64_t region = rank.world->engine.memory.add(RegionKind::kAllocation, rank.rank, "", address, bytes, Space::kGlobal, true, 0, false);
  *pointer = memory.data();
  rank.allocations.emplace(address, std::pair{std::move(memory), region});
  return cudaSuccess;
}

cudaError_t release(RankState& rank, void* pointer) {
  if (!pointer) return cudaSuccess;
  const auto found = rank.allocations.find(reinterpret_cast<uint64_t>(pointer));
  if (found == rank.allocations.end()) return cudaErrorInvalidValue;
  rank.world->engine.memory.remove(found->second.second);
  rank.allocations.erase(found);
  return cudaSuccess;
}

cudaError_t enqueue_and_wait(cudaStream_t handle, const Work& work, bool waits) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    rank.world->enqueue(stream, work);
    return waits && !rank.capturing ? waited(rank.world->synchronize(stream)) : cudaSuccess;
  });
}

// Memory from malloc on the GPU is for kernels alone: "cannot be used in any runtime or driver API calls".
bool is_of_heap(const RankState& rank, const void* pointer) {
  return rank.world->engine.heap(rank.rank).holds(reinterpret_cast<uint64_t>(pointer));
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool waits, const char* name) {
  RankState* const rank = calling_rank();
  if (!rank) return cudaErrorInitializationError;
  if (bytes && (!to || !from)) return finish(cudaErrorInvalidValue);
  if (is_of_heap(*rank, to) || is_of_heap(*rank, from)) return finish(cudaErrorInvalidValue);
  return enqueue_and_wait(stream, copy_work(*rank->world, to, from, bytes, name), waits);
}

cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaStream_t stream, bool waits) {
  for (size_t row = 0; row < height; ++row) {
    const bool last = row + 1 == height;
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, stream, waits && last, "cudaMemcpy2D");
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class F>
cudaError_t with_variable(const void* symbol, F f) {
  return with_rank([&](RankState& rank) {
    const auto found = rank.variables.find(symbol);
    if (found == rank.variables.end()) return cudaErrorInvalidSymbol;
    const uint64_t address = rank.world->variable_address(*found->second.module, found->second.name);
    return address ? f(rank, reinterpret_cast<char*>(address), found->second) : cudaErrorInvalidSymbol;
  });
}

}  // namespace

PKB_CUDART cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return with_rank([&](RankState& rank) { return allocate(rank, pointer, bytes); });
}
PKB_CUDART cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }
PKB_CUDART cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
PKB_CUDART cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes); }
PKB_CUDART cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }

// Waits for the rank's work, as cudaFree does.
PKB_CUDART cudaError_t cudaFree(void* pointer) {
  return with_rank([&](RankState& rank) {
    if (pointer && !rank.world->synchronize(rank)) return cudaErrorLaunchFailure;
    return release(rank, pointer);
  });
}
PKB_CUDART cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }

PKB_CUDART cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    rank.world->enqueue(stream, function_work(*rank.world, [&rank, pointer] { release(rank, pointer); }, "cudaFreeAsync"));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return with_rank([&](RankState& rank) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (rank.registered.contains(address)) return cudaErrorHostMemoryAlreadyRegistered;
    rank.registered[address] = rank.world->engine.memory.add(RegionKind::kHost, rank.rank, "", address, bytes, Space::kGlobal, true);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostUnregister(void* pointer) {
  return with_rank([&](RankState& rank) {
    const auto found = rank.registered.find(reinterpret_cast<uint64_t>(pointer));
    if (found == rank.registered.end()) return cudaErrorHostMemoryNotRegistered;
    rank.world->engine.memory.remove(found->second);
    rank.registered.erase(found);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = 80ull << 30;
  *free = 64ull << 30;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return with_rank([&](RankState& rank) {
    std::memset(attributes, 0, sizeof *attributes);
    const Extent* const extent = rank.world->engine.memory.find(reinterpret_cast<uint64_t>(pointer), 1);
    attributes->type = extent ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes, nullptr, true, "cudaMemcpy"); }
PKB_CUDART cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) { return copy(to, from, bytes, stream, false, "cudaMemcpyAsync"); }
PKB_CUDART cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return copy(to, from, bytes, nullptr, true, "cudaMemcpyPeer"); }
PKB_CUDART cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) { return copy(to, from, bytes, stream, false, "cudaMemcpyPeerAsync"); }
PKB_CUDART cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, nullptr, true);
}
PKB_CUDART cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, stream, false);
}

PKB_CUDART cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  RankState* const rank = calling_rank();
  if (!rank) return cudaErrorInitializationError;
  if (is_of_heap(*rank, to)) return finish(cudaErrorInvalidValue);
  return enqueue_and_wait(nullptr, fill_work(*rank->world, to, byte, bytes, "cudaMemset"), true);
}
PKB_CUDART cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  RankState* const rank = calling_rank();
  if (!rank) return cudaErrorInitializationError;
  if (is_of_heap(*rank, to)) return finish(cudaErrorInvalidValue);
  return enqueue_and_wait(stream, fill_work(*rank->world, to, byte, bytes, "cudaMemsetAsync"), false);
}

PKB_CUDART cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry&) {
    *pointer = address;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return with_variable(symbol, [&](RankState&, char*, const VariableEntry& variable) {
    *bytes = variable.bytes;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind, cudaStream_t stream) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return offset + bytes > variable.bytes ? cudaErrorInvalidValue : copy(address + offset, from, bytes, stream, false, "cudaMemcpyToSymbolAsync");
  });
}
PKB_CUDART cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return offset + bytes > variable.bytes ? cudaErrorInvalidValue : copy(address + offset, from, bytes, nullptr, true, "cudaMemcpyToSymbol");
  });
}
PKB_CUDART cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind, cudaStream_t stream) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return offset + bytes > variable.bytes ? cudaErrorInvalidValue : copy(to, address + offset, bytes, stream, false, "cudaMemcpyFromSymbolAsync");
  });
}
PKB_CUDART cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return offset + bytes > variable.bytes ? cudaErrorInvalidValue : copy(to, address + offset, bytes, nullptr, true, "cudaMemcpyFromSymbol");
  });
}
