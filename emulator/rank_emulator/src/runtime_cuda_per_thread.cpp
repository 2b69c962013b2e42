// Functions that programs of `nvcc --default-stream per-thread` call: a null handle of theirs stands for the stream of the
// thread. _ptsz: of functions with a stream; _ptds: of those that use the default one.
#include <cuda.h>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

template <class Result, class... Parameters, class... Arguments>
Result per_thread(Result (*function)(Parameters...), Arguments... arguments) {
  struct Default {
    Default() {
      if (World::current) World::current->defaults_to_own = true;
    }
    ~Default() {
      if (World::current) World::current->defaults_to_own = false;
    }
  } const stream_of_the_thread;
  return function(arguments...);
}

}  // namespace

PKB_CUDART cudaError_t cudaMemcpy_ptds(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) { return per_thread(cudaMemcpy, to, from, bytes, kind); }
PKB_CUDART cudaError_t cudaMemcpy2D_ptds(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) { return per_thread(cudaMemcpy2D, to, to_pitch, from, from_pitch, width, height, kind); }
PKB_CUDART cudaError_t cudaMemcpy3D_ptds(const cudaMemcpy3DParms* box) { return per_thread(cudaMemcpy3D, box); }
PKB_CUDART cudaError_t cudaMemcpy3DPeer_ptds(const cudaMemcpy3DPeerParms* box) { return per_thread(cudaMemcpy3DPeer, box); }
PKB_CUDART cudaError_t cudaMemset3D_ptds(cudaPitchedPtr memory, int byte, cudaExtent extent) { return per_thread(cudaMemset3D, memory, byte, extent); }
PKB_CUDART cudaError_t cudaMemcpyToSymbol_ptds(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) { return per_thread(cudaMemcpyToSymbol, symbol, from, bytes, offset, kind); }
PKB_CUDART cudaError_t cudaMemcpyFromSymbol_ptds(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) { return per_thread(cudaMemcpyFromSymbol, to, symbol, bytes, offset, kind); }
PKB_CUDART cudaError_t cudaMemset_ptds(void* to, int byte, size_t bytes) { return per_thread(cudaMemset, to, byte, bytes); }
PKB_CUDART cudaError_t cudaMemset2D_ptds(void* to, size_t pitch, int byte, size_t width, size_t height) { return per_thread(cudaMemset2D, to, pitch, byte, width, height); }
PKB_CUDART cudaError_t cudaMemcpyAsync_ptsz(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) { return per_thread(cudaMemcpyAsync, to, from, bytes, kind, stream); }
PKB_CUDART cudaError_t cudaMemcpy2DAsync_ptsz(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) { return per_thread(cudaMemcpy2DAsync, to, to_pitch, from, from_pitch, width, height, kind, stream); }
PKB_CUDART cudaError_t cudaMemcpyToSymbolAsync_ptsz(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) { return per_thread(cudaMemcpyToSymbolAsync, symbol, from, bytes, offset, kind, stream); }
PKB_CUDART cudaError_t cudaMemcpyFromSymbolAsync_ptsz(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) { return per_thread(cudaMemcpyFromSymbolAsync, to, symbol, bytes, offset, kind, stream); }
PKB_CUDART cudaError_t cudaMemcpy3DAsync_ptsz(const cudaMemcpy3DParms* box, cudaStream_t stream) { return per_thread(cudaMemcpy3DAsync, box, stream); }
PKB_CUDART cudaError_t cudaMemcpy3DPeerAsync_ptsz(const cudaMemcpy3DPeerParms* box, cudaStream_t stream) { return per_thread(cudaMemcpy3DPeerAsync, box, stream); }
PKB_CUDART cudaError_t cudaMemset3DAsync_ptsz(cudaPitchedPtr memory, int byte, cudaExtent extent, cudaStream_t stream) { return per_thread(cudaMemset3DAsync, memory, byte, extent, stream); }
PKB_CUDART cudaError_t cudaStreamAttachMemAsync_ptsz(cudaStream_t stream, void* pointer, size_t bytes, unsigned flags) { return per_thread(cudaStreamAttachMemAsync, stream, pointer, bytes, flags); }
#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaMemPrefetchAsync_ptsz(const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags, cudaStream_t stream) { return per_thread(cudaMemPrefetchAsync, pointer, bytes, location, flags, stream); }
PKB_CUDART cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** needs, const cudaGraphEdgeData** edges, size_t* count) { return per_thread(cudaStreamGetCaptureInfo, stream, status, id, graph, needs, edges, count); }
#endif
PKB_CUDART cudaError_t cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long* id) { return per_thread(cudaStreamGetId, stream, id); }
PKB_CUDART cudaError_t cudaStreamGetDevice_ptsz(cudaStream_t stream, int* device) { return per_thread(cudaStreamGetDevice, stream, device); }
PKB_CUDART cudaError_t cudaMemsetAsync_ptsz(void* to, int byte, size_t bytes, cudaStream_t stream) { return per_thread(cudaMemsetAsync, to, byte, bytes, stream); }
PKB_CUDART cudaError_t cudaMemset2DAsync_ptsz(void* to, size_t pitch, int byte, size_t width, size_t height, cudaStream_t stream) { return per_thread(cudaMemset2DAsync, to, pitch, byte, width, height, stream); }
PKB_CUDART cudaError_t cudaMallocAsync_ptsz(void** pointer, size_t bytes, cudaStream_t stream) { return per_thread(cudaMallocAsync, pointer, bytes, stream); }
PKB_CUDART cudaError_t cudaMallocFromPoolAsync_ptsz(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) { return per_thread(cudaMallocFromPoolAsync, pointer, bytes, pool, stream); }
PKB_CUDART cudaError_t cudaFreeAsync_ptsz(void* pointer, cudaStream_t stream) { return per_thread(cudaFreeAsync, pointer, stream); }
PKB_CUDART cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) { return per_thread(cudaEventRecord, event, stream); }
PKB_CUDART cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return per_thread(cudaEventRecordWithFlags, event, stream, flags); }
PKB_CUDART cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return per_thread(cudaStreamWaitEvent, stream, event, flags); }
PKB_CUDART cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) { return per_thread(cudaStreamSynchronize, stream); }
PKB_CUDART cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) { return per_thread(cudaStreamQuery, stream); }
PKB_CUDART cudaError_t cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned* flags) { return per_thread(cudaStreamGetFlags, stream, flags); }
PKB_CUDART cudaError_t cudaStreamGetPriority_ptsz(cudaStream_t stream, int* priority) { return per_thread(cudaStreamGetPriority, stream, priority); }
PKB_CUDART cudaError_t cudaStreamGetAttribute_ptsz(cudaStream_t stream, cudaStreamAttrID attribute, cudaStreamAttrValue* value) { return per_thread(cudaStreamGetAttribute, stream, attribute, value); }
PKB_CUDART cudaError_t cudaStreamSetAttribute_ptsz(cudaStream_t stream, cudaStreamAttrID attribute, const cudaStreamAttrValue* value) { return per_thread(cudaStreamSetAttribute, stream, attribute, value); }
PKB_CUDART cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, cudaStreamCaptureMode mode) { return per_thread(cudaStreamBeginCapture, stream, mode); }
PKB_CUDART cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t* graph) { return per_thread(cudaStreamEndCapture, stream, graph); }
PKB_CUDART cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, cudaStreamCaptureStatus* status) { return per_thread(cudaStreamIsCapturing, stream, status); }
PKB_CUDART cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t executable, cudaStream_t stream) { return per_thread(cudaGraphLaunch, executable, stream); }
PKB_CUDART cudaError_t cudaGraphInstantiateWithParams_ptsz(cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* wanted) { return per_thread(cudaGraphInstantiateWithParams, executable, graph, wanted); }
PKB_CUDART cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t executable, cudaStream_t stream) { return per_thread(cudaGraphUpload, executable, stream); }
PKB_CUDART cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void* user) { return per_thread(cudaLaunchHostFunc, stream, function, user); }
PKB_CUDART cudaError_t cudaStreamAddCallback_ptsz(cudaStream_t stream, cudaStreamCallback_t function, void* user, unsigned flags) { return per_thread(cudaStreamAddCallback, stream, function, user, flags); }
PKB_CUDART cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) { return per_thread(__cudaLaunchKernel, kernel, grid, block, arguments, shared, stream); }
PKB_CUDART cudaError_t cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) { return per_thread(cudaLaunchKernel, function, grid, block, arguments, shared, stream); }
PKB_CUDART cudaError_t cudaLaunchCooperativeKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) { return per_thread(cudaLaunchCooperativeKernel, function, grid, block, arguments, shared, stream); }
PKB_CUDART cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* function, void** arguments) { return per_thread(cudaLaunchKernelExC, config, function, arguments); }

PKB_CUDART CUresult cuStreamSynchronize_ptsz(CUstream stream) { return per_thread(cuStreamSynchronize, stream); }
PKB_CUDART CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) { return per_thread(cuStreamBatchMemOp_v2, stream, count, operations, flags); }
PKB_CUDART CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) { return per_thread(cuStreamWaitValue32_v2, stream, address, value, flags); }
PKB_CUDART CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) { return per_thread(cuStreamWaitValue64_v2, stream, address, value, flags); }
PKB_CUDART CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) { return per_thread(cuStreamWriteValue32_v2, stream, address, value, flags); }
PKB_CUDART CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) { return per_thread(cuStreamWriteValue64_v2, stream, address, value, flags); }
PKB_CUDART CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return per_thread(cuMemcpy, to, from, bytes); }
PKB_CUDART CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return per_thread(cuMemcpyAsync, to, from, bytes, stream); }
PKB_CUDART CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return per_thread(cuMemcpyDtoD_v2, to, from, bytes); }
PKB_CUDART CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return per_thread(cuMemcpyDtoDAsync_v2, to, from, bytes, stream); }
PKB_CUDART CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) { return per_thread(cuMemcpyHtoD_v2, to, from, bytes); }
PKB_CUDART CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) { return per_thread(cuMemcpyHtoDAsync_v2, to, from, bytes, stream); }
PKB_CUDART CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) { return per_thread(cuMemcpyDtoH_v2, to, from, bytes); }
PKB_CUDART CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) { return per_thread(cuMemcpyDtoHAsync_v2, to, from, bytes, stream); }
PKB_CUDART CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) { return per_thread(cuMemcpyPeer, to, to_context, from, from_context, bytes); }
PKB_CUDART CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) { return per_thread(cuMemcpyPeerAsync, to, to_context, from, from_context, bytes, stream); }
PKB_CUDART CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* what) { return per_thread(cuMemcpy2D_v2, what); }
PKB_CUDART CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* what) { return per_thread(cuMemcpy2DUnaligned_v2, what); }
PKB_CUDART CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* what, CUstream stream) { return per_thread(cuMemcpy2DAsync_v2, what, stream); }
PKB_CUDART CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) { return per_thread(cuMemsetD8_v2, to, value, count); }
PKB_CUDART CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) { return per_thread(cuMemsetD2D8_v2, to, pitch, value, width, height); }
PKB_CUDART CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) { return per_thread(cuMemsetD8Async, to, value, count, stream); }
PKB_CUDART CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) { return per_thread(cuMemsetD2D8Async, to, pitch, value, width, height, stream); }
PKB_CUDART CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) { return per_thread(cuMemsetD16_v2, to, value, count); }
PKB_CUDART CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) { return per_thread(cuMemsetD2D16_v2, to, pitch, value, width, height); }
PKB_CUDART CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) { return per_thread(cuMemsetD16Async, to, value, count, stream); }
PKB_CUDART CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) { return per_thread(cuMemsetD2D16Async, to, pitch, value, width, height, stream); }
PKB_CUDART CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) { return per_thread(cuMemsetD32_v2, to, value, count); }
PKB_CUDART CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) { return per_thread(cuMemsetD2D32_v2, to, pitch, value, width, height); }
PKB_CUDART CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) { return per_thread(cuMemsetD32Async, to, value, count, stream); }
PKB_CUDART CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) { return per_thread(cuMemsetD2D32Async, to, pitch, value, width, height, stream); }
