// libcudart: what programs say for speed or for a profiler, which changes nothing here, and names of GPUs.
#include <cuda_profiler_api.h>

#include <cstdio>
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

PKB_CUDART cudaError_t cudaProfilerStart() { return cudaSuccess; }
PKB_CUDART cudaError_t cudaProfilerStop() { return cudaSuccess; }

PKB_CUDART cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
PKB_CUDART cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
PKB_CUDART cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}

// Managed memory is at one place, which all can reach.
#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
#else
PKB_CUDART cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return cudaSuccess; }
#endif

#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaMemPrefetchBatchAsync(void**, size_t*, size_t, cudaMemLocation*, size_t*, size_t, unsigned long long, cudaStream_t) { return cudaSuccess; }
#endif

// Which streams and hosts use managed memory is seen from what they do.
PKB_CUDART cudaError_t cudaStreamAttachMemAsync(cudaStream_t handle, void* pointer, size_t, unsigned) {
  return with_stream(handle, [&](RankState& rank, Stream&) {
    return rank.world->kind_of_memory(pointer) == MemoryKind::kManaged ? cudaSuccess : cudaErrorInvalidValue;
  });
}
// No advice is kept.
PKB_CUDART cudaError_t cudaMemRangeGetAttribute(void* data, size_t bytes, cudaMemRangeAttribute attribute, const void*, size_t) {
  std::memset(data, 0, bytes);
  if (attribute == cudaMemRangeAttributeReadMostly) return cudaSuccess;
  const int nowhere = cudaInvalidDeviceId;
  for (size_t at = 0; at + sizeof nowhere <= bytes; at += sizeof nowhere) std::memcpy(static_cast<char*>(data) + at, &nowhere, sizeof nowhere);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaMemRangeGetAttributes(void** data, size_t* bytes, cudaMemRangeAttribute* attributes, size_t count, const void* pointer, size_t length) {
  for (size_t i = 0; i < count; ++i) cudaMemRangeGetAttribute(data[i], bytes[i], attributes[i], pointer, length);
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return with_stream(to, [&](RankState& rank, Stream&) { return stream_of(rank, from) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}
PKB_CUDART cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return with_stream(handle, [&](RankState&, Stream& stream) {
    *id = stream.id;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return with_stream(handle, [&](RankState& rank, Stream&) {
    *device = rank.rank;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  *config = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }

// Memory of graphs is given back when the world ends.
PKB_CUDART cudaError_t cudaDeviceGraphMemTrim(int) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType, void* value) {
  return with_rank([&](RankState& rank) {
    if (device < 0 || size_t(device) >= rank.world->ranks.size()) return cudaErrorInvalidDevice;
    uint64_t bytes = 0;
    for (const auto& [address, allocation] : rank.world->visible(rank, size_t(device)).allocations) bytes += allocation.is_of_graph ? allocation.memory.bytes() : 0;
    std::memcpy(value, &bytes, sizeof bytes);
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }

// Windows of the L2 cache, priorities, policies of synchronisation.
PKB_CUDART cudaError_t cudaStreamSetAttribute(cudaStream_t handle, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return with_stream(handle, [](RankState&, Stream&) { return cudaSuccess; });
}
PKB_CUDART cudaError_t cudaStreamGetAttribute(cudaStream_t handle, cudaStreamAttrID, cudaStreamAttrValue* value) {
  return with_stream(handle, [&](RankState&, Stream&) {
    std::memset(value, 0, sizeof *value);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostGetFlags(unsigned* flags, void*) {
  *flags = cudaHostAllocPortable | cudaHostAllocMapped;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int device) {
  if (bytes < 13) return cudaErrorInvalidValue;
  std::snprintf(name, size_t(bytes), "0000:%02x:00.0", unsigned(device + 1) & 0xff);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* name) {
  unsigned domain = 0, bus = 0;
  const bool is_read = std::sscanf(name, "%x:%x:", &domain, &bus) == 2 || std::sscanf(name, "%x:", &bus) == 1;
  if (!is_read || bus == 0) return finish(cudaErrorInvalidValue);
  return with_rank([&](RankState& rank) {
    *device = int(bus) - 1;
    return size_t(*device) < rank.world->ranks.size() ? cudaSuccess : cudaErrorInvalidDevice;
  });
}
// All GPUs are alike.
PKB_CUDART cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return cudaGetDevice(device); }
PKB_CUDART cudaError_t cudaSetValidDevices(int*, int) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget, cudaFlushGPUDirectRDMAWritesScope) { return cudaSuccess; }
PKB_CUDART cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }
