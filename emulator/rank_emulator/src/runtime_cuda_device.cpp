// libcudart: attributes and limits of a GPU, errors.
#include <cuda.h>

#include <cstring>
#include <utility>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

constexpr size_t kMaxStackBytes = 512 << 10;  // of a thread, as GPUs have

int attribute_of(const Device& device, int number, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: return device.multiprocessors;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return int(device.threads_of_block);
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return int(device.shared_of_block);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return int(device.shared_bytes);
    case cudaDevAttrReservedSharedMemoryPerBlock: return int(device.reserved_shared);
    case cudaDevAttrTotalConstantMemory: return 64 << 10;
    case cudaDevAttrWarpSize: return kLanes;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return int(device.registers);
    case cudaDevAttrMaxThreadsPerMultiProcessor: return int(device.threads);
    case cudaDevAttrMaxBlocksPerMultiprocessor: return int(device.blocks);
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostNativeAtomicSupported:
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR):
    case cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED): return 1;
    case cudaDevAttrPciBusId: return number + 1;
    default: return 0;
  }
}

struct ErrorName {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorName kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "invalid cluster size"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {cudaErrorTooManyPeers, "cudaErrorTooManyPeers", "peer mapping resources exhausted"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"}};

const ErrorName& name_of(cudaError_t error) {
  static constexpr ErrorName kUnknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const ErrorName& name : kErrors) {
    if (name.error == error) return name;
  }
  return kUnknown;
}

}  // namespace

PKB_CUDART cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  return with_rank([&](RankState& rank) {
    if (number < 0 || size_t(number) >= rank.world->ranks.size()) return cudaErrorInvalidDevice;
    *value = attribute_of(rank.world->engine.device, number, attribute);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  return with_rank([&](RankState& rank) {
    if (number < 0 || size_t(number) >= rank.world->ranks.size()) return cudaErrorInvalidDevice;
    const Device& device = rank.world->engine.device;
    std::memset(properties, 0, sizeof *properties);
    std::strcpy(properties->name, "emulated sm_90");
    properties->major = 9;
    properties->totalGlobalMem = 80ull << 30;
    properties->multiProcessorCount = device.multiprocessors;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = device.shared_of_block;
    properties->sharedMemPerMultiprocessor = device.shared_bytes;
    properties->reservedSharedMemPerBlock = device.reserved_shared;
    properties->regsPerBlock = properties->regsPerMultiprocessor = int(device.registers);
    properties->warpSize = kLanes;
    properties->textureAlignment = 512;
    properties->texturePitchAlignment = 32;
    properties->maxThreadsPerBlock = int(device.threads_of_block);
    properties->maxThreadsPerMultiProcessor = int(device.threads);
    properties->maxBlocksPerMultiProcessor = int(device.blocks);
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->l2CacheSize = 50 << 20;
    properties->cooperativeLaunch = properties->concurrentKernels = properties->unifiedAddressing = 1;
    properties->managedMemory = properties->concurrentManagedAccess = properties->canMapHostMemory = 1;
    properties->clusterLaunch = properties->memoryPoolsSupported = properties->streamPrioritiesSupported = 1;
    properties->totalConstMem = 64 << 10;
    properties->asyncEngineCount = 3;
    properties->memoryBusWidth = 5120;
    properties->pciBusID = number + 1;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaDeviceSynchronize() {
  return with_rank([](RankState& rank) { return waited(rank.world->synchronize(rank)); });
}
PKB_CUDART cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }
PKB_CUDART cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return with_rank([&](RankState& rank) {
    if (limit == cudaLimitMallocHeapSize) return rank.world->engine.heap(rank.rank).set_limit(value) ? cudaSuccess : cudaErrorInvalidValue;
    if (limit != cudaLimitStackSize) return cudaSuccess;
    if (value > kMaxStackBytes) return cudaErrorInvalidValue;
    if (!rank.world->synchronize(rank)) return cudaErrorLaunchFailure;
    rank.world->set_stack(rank, (value + 15) / 16 * 16);
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return with_rank([&](RankState& rank) {
    *value = limit == cudaLimitMallocHeapSize ? rank.world->engine.heap(rank.rank).limit() : limit == cudaLimitStackSize ? rank.stack_bytes : 0;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
PKB_CUDART cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaGetLastError() {
  HostThread* const host = World::current;
  if (!host) return cudaErrorInitializationError;
  return host->world->failed() ? cudaErrorLaunchFailure : cudaError_t(std::exchange(host->last_error, cudaSuccess));
}
PKB_CUDART cudaError_t cudaPeekAtLastError() {
  const HostThread* const host = World::current;
  if (!host) return cudaErrorInitializationError;
  return host->world->failed() ? cudaErrorLaunchFailure : cudaError_t(host->last_error);
}
PKB_CUDART const char* cudaGetErrorName(cudaError_t error) { return name_of(error).name; }
PKB_CUDART const char* cudaGetErrorString(cudaError_t error) { return name_of(error).text; }
