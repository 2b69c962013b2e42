// libcuda: copies and fills, attributes of pointers, primary contexts.
#include <cuda.h>

#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult copy_rectangle(const CUDA_MEMCPY2D& what, CUstream stream, bool is_async, const char* name) {
  const auto place = [](CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y, size_t pitch) -> char* {
    if (type == CU_MEMORYTYPE_ARRAY) return nullptr;
    char* const begin = static_cast<char*>(type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : pointer(device));
    return begin + y * pitch + x;
  };
  const size_t to_pitch = what.dstPitch ? what.dstPitch : what.WidthInBytes + what.dstXInBytes;
  const size_t from_pitch = what.srcPitch ? what.srcPitch : what.WidthInBytes + what.srcXInBytes;
  char* const to = place(what.dstMemoryType, what.dstHost, what.dstDevice, what.dstXInBytes, what.dstY, to_pitch);
  const char* const from = place(what.srcMemoryType, what.srcHost, what.srcDevice, what.srcXInBytes, what.srcY, from_pitch);
  if (!to || !from) return CUDA_ERROR_NOT_SUPPORTED;
  return driver_result(copy_rows(to, to_pitch, from, from_pitch, what.WidthInBytes, what.Height, stream, is_async, name));
}

// `width`: of a row, in values.
CUresult fill_words(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t value_bytes, size_t width, size_t height, CUstream stream, bool is_async, const char* name) {
  if (to % value_bytes || pitch % value_bytes) return CUDA_ERROR_INVALID_VALUE;
  return driver_result(fill_rows(pointer(to), pitch, value, width * value_bytes, height, stream, is_async, name, value_bytes));
}

// An attribute of memory that CUDA knows; its value takes 1 to 8 bytes.
CUresult attribute_of(RankState& rank, CUpointer_attribute attribute, void* value, CUdeviceptr address, MemoryKind kind) {
  const auto give = [&](auto what) {
    std::memcpy(value, &what, sizeof what);
    return CUDA_SUCCESS;
  };
  const Extent* const extent = rank.world->engine.memory.find_seen(address, 1);
  const bool is_on_gpu = kind != MemoryKind::kPinned;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return give(&rank);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return give(is_on_gpu ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return give(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return kind == MemoryKind::kDevice ? CUDA_ERROR_INVALID_VALUE : give(address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return give(0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return extent ? give(extent->region) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give(unsigned(kind == MemoryKind::kManaged));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return give(extent && is_on_gpu ? extent->rank : rank.rank);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return give(kind == MemoryKind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return extent ? give(extent->on_gpu ? gpu_address(extent->begin) : extent->begin) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return extent ? give(extent->end - extent->begin) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_MAPPED: return give(true);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

PKB_CUDART CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return driver_result(copy(pointer(to), pointer(from), bytes, nullptr, false, "cuMemcpy")); }
PKB_CUDART CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return driver_result(copy(pointer(to), pointer(from), bytes, stream, true, "cuMemcpyAsync")); }
PKB_CUDART CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return driver_result(copy(pointer(to), pointer(from), bytes, nullptr, false, "cuMemcpyDtoD")); }
PKB_CUDART CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return driver_result(copy(pointer(to), pointer(from), bytes, stream, true, "cuMemcpyDtoDAsync")); }
PKB_CUDART CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { return driver_result(copy(pointer(to), from, bytes, nullptr, false, "cuMemcpyHtoD")); }
PKB_CUDART CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) { return driver_result(copy(pointer(to), from, bytes, stream, true, "cuMemcpyHtoDAsync")); }
PKB_CUDART CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return driver_result(copy(to, pointer(from), bytes, nullptr, false, "cuMemcpyDtoH")); }
PKB_CUDART CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) { return driver_result(copy(to, pointer(from), bytes, stream, true, "cuMemcpyDtoHAsync")); }
PKB_CUDART CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) { return driver_result(copy(pointer(to), pointer(from), bytes, nullptr, false, "cuMemcpyPeer")); }
PKB_CUDART CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) { return driver_result(copy(pointer(to), pointer(from), bytes, stream, true, "cuMemcpyPeerAsync")); }
PKB_CUDART CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* what) { return copy_rectangle(*what, nullptr, false, "cuMemcpy2D"); }
PKB_CUDART CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* what) { return copy_rectangle(*what, nullptr, false, "cuMemcpy2DUnaligned"); }
PKB_CUDART CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* what, CUstream stream) { return copy_rectangle(*what, stream, true, "cuMemcpy2DAsync"); }
PKB_CUDART CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill_words(to, 0, value, 1, count, 1, nullptr, false, "cuMemsetD8"); }
PKB_CUDART CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) { return fill_words(to, pitch, value, 1, width, height, nullptr, false, "cuMemsetD2D8"); }
PKB_CUDART CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) { return fill_words(to, 0, value, 1, count, 1, stream, true, "cuMemsetD8Async"); }
PKB_CUDART CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) { return fill_words(to, pitch, value, 1, width, height, stream, true, "cuMemsetD2D8Async"); }
PKB_CUDART CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill_words(to, 0, value, 2, count, 1, nullptr, false, "cuMemsetD16"); }
PKB_CUDART CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) { return fill_words(to, pitch, value, 2, width, height, nullptr, false, "cuMemsetD2D16"); }
PKB_CUDART CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) { return fill_words(to, 0, value, 2, count, 1, stream, true, "cuMemsetD16Async"); }
PKB_CUDART CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) { return fill_words(to, pitch, value, 2, width, height, stream, true, "cuMemsetD2D16Async"); }
PKB_CUDART CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill_words(to, 0, value, 4, count, 1, nullptr, false, "cuMemsetD32"); }
PKB_CUDART CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) { return fill_words(to, pitch, value, 4, width, height, nullptr, false, "cuMemsetD2D32"); }
PKB_CUDART CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) { return fill_words(to, 0, value, 4, count, 1, stream, true, "cuMemsetD32Async"); }
PKB_CUDART CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) { return fill_words(to, pitch, value, 4, width, height, stream, true, "cuMemsetD2D32Async"); }

PKB_CUDART CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  RankState* const rank = calling_rank();
  if (!rank) return CUDA_ERROR_NOT_INITIALIZED;
  const MemoryKind kind = rank->world->kind_of_memory(pointer(address));
  return kind == MemoryKind::kPageable ? CUDA_ERROR_INVALID_VALUE : attribute_of(*rank, attribute, value, address, kind);
}

// Of memory that CUDA does not know all attributes are 0, which is no error.
PKB_CUDART CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  for (unsigned i = 0; i < count; ++i) {
    const bool is_short = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
                          attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED || attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    const bool is_flag = attributes[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE || attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED;
    std::memset(values[i], 0, is_flag ? sizeof(bool) : is_short ? sizeof(int) : sizeof(uint64_t));
    const CUresult result = cuPointerGetAttribute(values[i], attributes[i], address);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) return result;
  }
  return CUDA_SUCCESS;
}

// Copies are in order anyway.
PKB_CUDART CUresult cuPointerSetAttribute(const void*, CUpointer_attribute attribute, CUdeviceptr) {
  return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The one context of a GPU, which names its memory in cuMemcpyPeer.
PKB_CUDART CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  RankState* const rank = calling_rank();
  if (!rank) return CUDA_ERROR_NOT_INITIALIZED;
  if (device < 0 || size_t(device) >= rank->world->ranks.size()) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(rank->world->ranks[size_t(device)].get());
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuDevicePrimaryCtxReset_v2(CUdevice) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return CUDA_SUCCESS;
}
