// libcuda: streams, devices, contexts, errors.
#include <cuda.h>

#include <cctype>
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

struct Comparison {
  const void* address;
  uint32_t bytes;
  uint64_t value;
  unsigned flags;

  // "CUstreamWaitValue_flags" of the driver's documentation; the first is a comparison in a circle.
  bool operator()() const {
    uint64_t found = 0;
    std::memcpy(&found, address, bytes);
    switch (flags & 3) {
      case CU_STREAM_WAIT_VALUE_GEQ: return bytes == 4 ? int32_t(uint32_t(found) - uint32_t(value)) >= 0 : int64_t(found - value) >= 0;
      case CU_STREAM_WAIT_VALUE_EQ: return found == value;
      case CU_STREAM_WAIT_VALUE_AND: return (found & value) != 0;
      default: return bytes == 4 ? uint32_t(~(found | value)) != 0 : ~(found | value) != 0;
    }
  }
};

cudaError_t access_word(CUstream handle, CUdeviceptr address, uint32_t bytes, uint64_t value, WordAccess access, std::function<bool()> is_met, const char* name) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    if (address % bytes || !rank.world->engine.memory.find_seen(address, bytes)) return cudaErrorInvalidValue;
    rank.world->enqueue(stream, word_work(rank, stream, access, reinterpret_cast<void*>(address), bytes, value, std::move(is_met), name));
    return cudaSuccess;
  });
}

// Without the flag a write comes after a fence of system scope ("cuStreamWriteValue32" of the driver's documentation).
CUresult write_value(CUstream stream, CUdeviceptr address, uint32_t bytes, uint64_t value, unsigned flags, const char* name) {
  if (flags & ~unsigned(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) return CUDA_ERROR_INVALID_VALUE;
  const auto access = flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ? WordAccess::kRelaxed : WordAccess::kRelease;
  return driver_result(access_word(stream, address, bytes, value, access, {}, name));
}

CUresult wait_value(CUstream stream, CUdeviceptr address, uint32_t bytes, uint64_t value, unsigned flags, const char* name) {
  const Comparison comparison{reinterpret_cast<const void*>(own_address(address)), bytes, value, flags};
  return driver_result(access_word(stream, address, bytes, value, WordAccess::kWait, comparison, name));
}

}  // namespace

PKB_CUDART CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return write_value(stream, address, 4, value, flags, "cuStreamWriteValue32");
}
PKB_CUDART CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return write_value(stream, address, 8, value, flags, "cuStreamWriteValue64");
}
PKB_CUDART CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value(stream, address, 4, value, flags, "cuStreamWaitValue32");
}
PKB_CUDART CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait_value(stream, address, 8, value, flags, "cuStreamWaitValue64");
}

PKB_CUDART CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& each = operations[i];
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    switch (each.operation) {
      case CU_STREAM_MEM_OP_WRITE_VALUE_32: result = cuStreamWriteValue32_v2(stream, each.writeValue.address, each.writeValue.value, each.writeValue.flags); break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64: result = cuStreamWriteValue64_v2(stream, each.writeValue.address, each.writeValue.value64, each.writeValue.flags); break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_32: result = cuStreamWaitValue32_v2(stream, each.waitValue.address, each.waitValue.value, each.waitValue.flags); break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64: result = cuStreamWaitValue64_v2(stream, each.waitValue.address, each.waitValue.value64, each.waitValue.flags); break;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: result = CUDA_SUCCESS; break;  // a wait sees them already
      default: break;
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

PKB_CUDART CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuDriverGetVersion(int* version) { return driver_result(cudaDriverGetVersion(version)); }
PKB_CUDART CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuDeviceGetCount(int* count) { return driver_result(cudaGetDeviceCount(count)); }
// Attributes have the same numbers as the runtime's.
PKB_CUDART CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_result(cudaDeviceGetAttribute(value, cudaDeviceAttr(attribute), device));
}
PKB_CUDART CUresult cuCtxGetDevice(CUdevice* device) { return driver_result(cudaGetDevice(device)); }
PKB_CUDART CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(calling_rank());  // a GPU has one context
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuCtxSetCurrent(CUcontext context) {
  RankState* const rank = calling_rank();
  for (size_t i = 0; rank && i < rank->world->visible(); ++i) {
    RankState& other = rank->world->visible(*rank, i);
    if (context != reinterpret_cast<CUcontext>(&other)) continue;
    World::current->device = &other;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}
PKB_CUDART CUresult cuCtxSynchronize() { return driver_result(cudaDeviceSynchronize()); }
PKB_CUDART CUresult cuStreamSynchronize(CUstream stream) { return driver_result(cudaStreamSynchronize(stream)); }

PKB_CUDART CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  return driver_result(with_rank([&](RankState& rank) {
    const Extent* const extent = rank.world->engine.memory.find_seen(address, 1);
    if (!extent) return cudaErrorInvalidValue;
    if (begin) *begin = extent->on_gpu ? gpu_address(extent->begin) : extent->begin;
    if (bytes) *bytes = extent->end - extent->begin;
    return cudaSuccess;
  }));
}

PKB_CUDART CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(cudaError_t(error));
  return CUDA_SUCCESS;
}

// As the runtime's name, in the driver's spelling: "CUDA_ERROR_INVALID_VALUE" for "cudaErrorInvalidValue".
PKB_CUDART CUresult cuGetErrorName(CUresult error, const char** name) {
  static thread_local std::string text;
  text = "CUDA";
  for (const char* at = cudaGetErrorName(cudaError_t(error)) + 4; *at; ++at) {
    if (*at >= 'A' && *at <= 'Z') text += '_';
    text += char(std::toupper(*at));
  }
  *name = text.c_str();
  return CUDA_SUCCESS;
}
