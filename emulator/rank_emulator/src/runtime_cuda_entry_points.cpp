// Functions of the driver by their names, for cudaGetDriverEntryPoint and cuGetProcAddress.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

// Those that a null stream means another one for, where a program has a default stream for each thread.
#define PKB_STREAMED(X) \
  X(cuStreamSynchronize, ptsz) \
  X(cuStreamBatchMemOp_v2, ptsz) \
  X(cuStreamWaitValue32_v2, ptsz) \
  X(cuStreamWaitValue64_v2, ptsz) \
  X(cuStreamWriteValue32_v2, ptsz) \
  X(cuStreamWriteValue64_v2, ptsz) \
  X(cuMemcpy, ptds) \
  X(cuMemcpyAsync, ptsz) \
  X(cuMemcpyDtoD_v2, ptds) \
  X(cuMemcpyDtoDAsync_v2, ptsz) \
  X(cuMemcpyHtoD_v2, ptds) \
  X(cuMemcpyHtoDAsync_v2, ptsz) \
  X(cuMemcpyDtoH_v2, ptds) \
  X(cuMemcpyDtoHAsync_v2, ptsz) \
  X(cuMemcpyPeer, ptds) \
  X(cuMemcpyPeerAsync, ptsz) \
  X(cuMemcpy2D_v2, ptds) \
  X(cuMemcpy2DUnaligned_v2, ptds) \
  X(cuMemcpy2DAsync_v2, ptsz) \
  X(cuMemsetD8_v2, ptds) \
  X(cuMemsetD2D8_v2, ptds) \
  X(cuMemsetD8Async, ptsz) \
  X(cuMemsetD2D8Async, ptsz) \
  X(cuMemsetD16_v2, ptds) \
  X(cuMemsetD2D16_v2, ptds) \
  X(cuMemsetD16Async, ptsz) \
  X(cuMemsetD2D16Async, ptsz) \
  X(cuMemsetD32_v2, ptds) \
  X(cuMemsetD2D32_v2, ptds) \
  X(cuMemsetD32Async, ptsz) \
  X(cuMemsetD2D32Async, ptsz)

#define PKB_DECLARE(function, suffix) extern "C" decltype(function) function##_##suffix;
PKB_STREAMED(PKB_DECLARE)
#undef PKB_DECLARE

namespace {

// Names have no version: "cuMemcpyDtoD" stands for cuMemcpyDtoD_v2.
struct EntryPoint {
  const char* name;
  void* function;
  void* per_thread;  // likewise, for programs with a default stream for each thread

  bool is_named(const char* asked) const {
    const size_t length = std::strlen(name), bare = length > 3 && std::strcmp(name + length - 3, "_v2") == 0 ? length - 3 : length;
    return std::strlen(asked) == bare && std::strncmp(name, asked, bare) == 0;
  }
};

#define PKB_ENTRY(function) {#function, reinterpret_cast<void*>(function), reinterpret_cast<void*>(function)}
#define PKB_STREAMED_ENTRY(function, suffix) {#function, reinterpret_cast<void*>(function), reinterpret_cast<void*>(function##_##suffix)},

const EntryPoint kEntryPoints[] = {
    PKB_STREAMED(PKB_STREAMED_ENTRY)
    PKB_ENTRY(cuTensorMapEncodeTiled),
    PKB_ENTRY(cuTensorMapReplaceAddress),
    PKB_ENTRY(cuInit),
    PKB_ENTRY(cuDriverGetVersion),
    PKB_ENTRY(cuDeviceGet),
    PKB_ENTRY(cuDeviceGetCount),
    PKB_ENTRY(cuDeviceGetAttribute),
    PKB_ENTRY(cuCtxGetDevice),
    PKB_ENTRY(cuCtxGetCurrent),
    PKB_ENTRY(cuCtxSetCurrent),
    PKB_ENTRY(cuCtxSynchronize),
    PKB_ENTRY(cuMemGetAddressRange_v2),
    PKB_ENTRY(cuMemGetAllocationGranularity),
    PKB_ENTRY(cuMemCreate),
    PKB_ENTRY(cuMemRelease),
    PKB_ENTRY(cuMemExportToShareableHandle),
    PKB_ENTRY(cuMemImportFromShareableHandle),
    PKB_ENTRY(cuMemGetAllocationPropertiesFromHandle),
    PKB_ENTRY(cuMemRetainAllocationHandle),
    PKB_ENTRY(cuMemAddressReserve),
    PKB_ENTRY(cuMemAddressFree),
    PKB_ENTRY(cuMemMap),
    PKB_ENTRY(cuMemUnmap),
    PKB_ENTRY(cuMemSetAccess),
    PKB_ENTRY(cuGetErrorString),
    PKB_ENTRY(cuGetErrorName),
    PKB_ENTRY(cuPointerGetAttribute),
    PKB_ENTRY(cuPointerGetAttributes),
    PKB_ENTRY(cuPointerSetAttribute),
    PKB_ENTRY(cuDevicePrimaryCtxRetain),
    PKB_ENTRY(cuDevicePrimaryCtxRelease_v2),
    PKB_ENTRY(cuDevicePrimaryCtxReset_v2),
    PKB_ENTRY(cuDevicePrimaryCtxSetFlags_v2),
    PKB_ENTRY(cuDevicePrimaryCtxGetState)};

#undef PKB_STREAMED_ENTRY
#undef PKB_ENTRY

// A function of the driver; null: the emulator lacks it. Then its name stands in the output, since a host that calls a
// null pointer can say nothing any more.
void* entry_point(const char* name, bool per_thread) {
  for (const EntryPoint& entry : kEntryPoints) {
    if (entry.is_named(name)) return per_thread ? entry.per_thread : entry.function;
  }
  RankState* const rank = calling_rank();
  if (rank && rank->world->lacking.insert(name).second) std::fprintf(stderr, "the emulated driver has no %s: its address is null\n", name);
  return nullptr;
}

cudaError_t find_entry_point(const char* symbol, void** entry, bool per_thread, cudaDriverEntryPointQueryResult* status) {
  *entry = entry_point(symbol, per_thread);
  if (status) *status = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *entry || status ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace

PKB_CUDART cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(symbol, entry, flags == cudaEnablePerThreadDefaultStream, status);
}
PKB_CUDART cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** entry, unsigned, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(symbol, entry, flags != cudaEnableLegacyStream, status);
}
PKB_CUDART cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** entry, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(symbol, entry, flags == cudaEnablePerThreadDefaultStream, status);
}
PKB_CUDART cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** entry, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(symbol, entry, flags != cudaEnableLegacyStream, status);
}
PKB_CUDART CUresult cuGetProcAddress_v2(const char* symbol, void** entry, int, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  *entry = entry_point(symbol, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  if (status) *status = *entry ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *entry || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
