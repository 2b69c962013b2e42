// libcuda: contexts, devices, memory, streams, events and IPC handles, as the runtime has them. A GPU has one context.
#include <cuda.h>

#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

void* memory_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
void** target(CUdeviceptr* address) { return reinterpret_cast<void**>(address); }

// The GPU of a context; null: of none that the process has.
RankState* gpu_of(CUcontext context) {
  RankState* const rank = calling_rank();
  for (size_t i = 0; rank && i < rank->world->visible(); ++i) {
    RankState& each = rank->world->visible(*rank, i);
    if (context == reinterpret_cast<CUcontext>(&each)) return &each;
  }
  return nullptr;
}

CUresult make_context(CUcontext* context, CUdevice device) {
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) return driver_result(error);
  World::current->contexts.push_back(calling_rank());
  *context = reinterpret_cast<CUcontext>(calling_rank());
  return CUDA_SUCCESS;
}

template <class F>
CUresult with_context(CUcontext context, F f) {
  RankState* const gpu = gpu_of(context);
  return gpu ? driver_result(f(*gpu)) : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

// ---- contexts ----

#if CUDA_VERSION >= 12050
PKB_CUDART CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice device) { return make_context(context, device); }
#endif
#undef cuCtxCreate
PKB_CUDART CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) { return make_context(context, device); }
PKB_CUDART CUresult cuCtxDestroy_v2(CUcontext context) {
  return with_context(context, [](RankState& gpu) {
    std::erase(World::current->contexts, &gpu);
    return waited(gpu.world->synchronize(gpu));
  });
}
PKB_CUDART CUresult cuCtxPushCurrent_v2(CUcontext context) {
  RankState* const gpu = gpu_of(context);
  if (!gpu) return CUDA_ERROR_INVALID_CONTEXT;
  auto& contexts = World::current->contexts;
  if (contexts.empty()) contexts.push_back(World::current->device);
  contexts.push_back(World::current->device = gpu);
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  RankState* const gpu = calling_rank();
  if (!gpu) return CUDA_ERROR_INVALID_CONTEXT;
  auto& contexts = World::current->contexts;
  if (!contexts.empty()) contexts.pop_back();
  if (!contexts.empty()) World::current->device = contexts.back();
  if (context) *context = reinterpret_cast<CUcontext>(gpu);
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return with_context(peer, [&](RankState& gpu) { return cudaDeviceEnablePeerAccess(gpu.rank, flags); });
}
PKB_CUDART CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return with_context(peer, [&](RankState& gpu) { return cudaDeviceDisablePeerAccess(gpu.rank); });
}
PKB_CUDART CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
PKB_CUDART CUresult cuCtxGetFlags(unsigned* flags) { return *flags = 0, CUDA_SUCCESS; }
PKB_CUDART CUresult cuCtxSetCacheConfig(CUfunc_cache) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return driver_result(cudaDeviceSetLimit(cudaLimit(limit), value)); }
PKB_CUDART CUresult cuCtxGetLimit(size_t* value, CUlimit limit) { return driver_result(cudaDeviceGetLimit(value, cudaLimit(limit))); }
PKB_CUDART CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) { return driver_result(cudaDeviceGetStreamPriorityRange(least, greatest)); }

// ---- devices ----

PKB_CUDART CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess && bytes > 0) {
    std::strncpy(name, properties.name, size_t(bytes));
    name[bytes - 1] = 0;
  }
  return driver_result(error);
}
PKB_CUDART CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  size_t free;
  return driver_result(cudaMemGetInfo(&free, bytes));
}
PKB_CUDART CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
  return driver_result(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device));
}
PKB_CUDART CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) std::memcpy(uuid, &properties.uuid, sizeof *uuid);
  return driver_result(error);
}
PKB_CUDART CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) { return driver_result(cudaDeviceCanAccessPeer(can, device, peer)); }
PKB_CUDART CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) { return driver_result(cudaDeviceGetP2PAttribute(value, cudaDeviceP2PAttr(attribute), device, peer)); }
PKB_CUDART CUresult cuDeviceGetPCIBusId(char* name, int bytes, CUdevice device) { return driver_result(cudaDeviceGetPCIBusId(name, bytes, device)); }
PKB_CUDART CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* name) { return driver_result(cudaDeviceGetByPCIBusId(device, name)); }
PKB_CUDART CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) { return driver_result(cudaDeviceGetDefaultMemPool(pool, device)); }
PKB_CUDART CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) { return driver_result(cudaDeviceGetMemPool(pool, device)); }

// ---- memory ----

PKB_CUDART CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) { return bytes ? driver_result(cudaMalloc(target(address), bytes)) : CUDA_ERROR_INVALID_VALUE; }
PKB_CUDART CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned) { return driver_result(cudaMallocPitch(target(address), pitch, width, height)); }
PKB_CUDART CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) { return driver_result(cudaMallocManaged(target(address), bytes, flags)); }
PKB_CUDART CUresult cuMemAllocHost_v2(void** memory, size_t bytes) { return driver_result(cudaMallocHost(memory, bytes)); }
PKB_CUDART CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) { return driver_result(cudaHostAlloc(memory, bytes, flags)); }
PKB_CUDART CUresult cuMemFree_v2(CUdeviceptr address) { return driver_result(cudaFree(memory_at(address))); }
PKB_CUDART CUresult cuMemFreeHost(void* memory) { return driver_result(cudaFreeHost(memory)); }
PKB_CUDART CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) { return driver_result(cudaHostRegister(memory, bytes, flags)); }
PKB_CUDART CUresult cuMemHostUnregister(void* memory) { return driver_result(cudaHostUnregister(memory)); }
PKB_CUDART CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned flags) { return driver_result(cudaHostGetDevicePointer(target(address), memory, flags)); }
PKB_CUDART CUresult cuMemHostGetFlags(unsigned* flags, void* memory) { return driver_result(cudaHostGetFlags(flags, memory)); }
PKB_CUDART CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return driver_result(cudaMemGetInfo(free, total)); }
PKB_CUDART CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) { return driver_result(cudaMallocAsync(target(address), bytes, stream)); }
PKB_CUDART CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) { return driver_result(cudaMallocFromPoolAsync(target(address), bytes, pool, stream)); }
PKB_CUDART CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return driver_result(cudaFreeAsync(memory_at(address), stream)); }
#if CUDA_VERSION >= 12020
PKB_CUDART CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream) { return CUDA_SUCCESS; }
#endif

// ---- streams and events ----

PKB_CUDART CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return driver_result(cudaStreamCreateWithFlags(stream, flags)); }
PKB_CUDART CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) { return driver_result(cudaStreamCreateWithPriority(stream, flags, priority)); }
PKB_CUDART CUresult cuStreamDestroy_v2(CUstream stream) { return driver_result(cudaStreamDestroy(stream)); }
PKB_CUDART CUresult cuStreamQuery(CUstream stream) { return driver_result(cudaStreamQuery(stream)); }
PKB_CUDART CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) { return driver_result(cudaStreamGetFlags(stream, flags)); }
PKB_CUDART CUresult cuStreamGetPriority(CUstream stream, int* priority) { return driver_result(cudaStreamGetPriority(stream, priority)); }
PKB_CUDART CUresult cuStreamGetId(CUstream stream, unsigned long long* id) { return driver_result(cudaStreamGetId(stream, id)); }
PKB_CUDART CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return driver_result(with_stream(handle, [&](RankState& gpu, Stream&) { return *context = reinterpret_cast<CUcontext>(&gpu), cudaSuccess; }));
}
PKB_CUDART CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { return driver_result(cudaStreamWaitEvent(stream, event, flags)); }
PKB_CUDART CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* user, unsigned flags) { return driver_result(cudaStreamAddCallback(stream, reinterpret_cast<cudaStreamCallback_t>(function), user, flags)); }
PKB_CUDART CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user) { return driver_result(cudaLaunchHostFunc(stream, function, user)); }
PKB_CUDART CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { return driver_result(cudaStreamBeginCapture(stream, cudaStreamCaptureMode(mode))); }
PKB_CUDART CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) { return driver_result(cudaStreamEndCapture(stream, graph)); }
PKB_CUDART CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) { return driver_result(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status))); }
PKB_CUDART CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) { return driver_result(cudaGraphInstantiateWithFlags(executable, graph, flags)); }
PKB_CUDART CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) { return driver_result(cudaGraphUpload(executable, stream)); }
PKB_CUDART CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) { return driver_result(cudaGraphLaunch(executable, stream)); }
PKB_CUDART CUresult cuGraphDestroy(CUgraph graph) { return driver_result(cudaGraphDestroy(graph)); }
PKB_CUDART CUresult cuGraphExecDestroy(CUgraphExec executable) { return driver_result(cudaGraphExecDestroy(executable)); }
PKB_CUDART CUresult cuEventCreate(CUevent* event, unsigned flags) { return driver_result(cudaEventCreateWithFlags(event, flags)); }
PKB_CUDART CUresult cuEventDestroy_v2(CUevent event) { return driver_result(cudaEventDestroy(event)); }
PKB_CUDART CUresult cuEventRecord(CUevent event, CUstream stream) { return driver_result(cudaEventRecord(event, stream)); }
PKB_CUDART CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) { return driver_result(cudaEventRecordWithFlags(event, stream, flags)); }
PKB_CUDART CUresult cuEventSynchronize(CUevent event) { return driver_result(cudaEventSynchronize(event)); }
PKB_CUDART CUresult cuEventQuery(CUevent event) { return driver_result(cudaEventQuery(event)); }
#if CUDA_VERSION >= 12080
PKB_CUDART CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent begin, CUevent end) { return driver_result(cudaEventElapsedTime(milliseconds, begin, end)); }
#else
PKB_CUDART CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) { return driver_result(cudaEventElapsedTime(milliseconds, begin, end)); }
#endif

// ---- handles for other processes ----

PKB_CUDART CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) { return driver_result(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), memory_at(address))); }
PKB_CUDART CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  cudaIpcMemHandle_t same;
  std::memcpy(&same, &handle, sizeof same);
  return driver_result(cudaIpcOpenMemHandle(target(address), same, flags));
}
PKB_CUDART CUresult cuIpcCloseMemHandle(CUdeviceptr address) { return driver_result(cudaIpcCloseMemHandle(memory_at(address))); }
PKB_CUDART CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) { return driver_result(cudaIpcGetEventHandle(reinterpret_cast<cudaIpcEventHandle_t*>(handle), event)); }
PKB_CUDART CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  cudaIpcEventHandle_t same;
  std::memcpy(&same, &handle, sizeof same);
  return driver_result(cudaIpcOpenEventHandle(event, same));
}
