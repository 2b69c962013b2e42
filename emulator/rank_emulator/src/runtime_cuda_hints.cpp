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
