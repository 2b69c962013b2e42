// libcudart: copies and fills of boxes, and several copies by one call.
#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

// A corner of a box: the position counts bytes, rows and slices.
char* corner(const cudaPitchedPtr& memory, const cudaPos& at) {
  return static_cast<char*>(memory.ptr) + (at.z * memory.ysize + at.y) * memory.pitch + at.x;
}

// Rows that lie one behind the other are one.
cudaError_t copy_slices(const cudaPitchedPtr& to, const cudaPos& to_at, const cudaPitchedPtr& from, const cudaPos& from_at, const cudaExtent& extent, cudaStream_t stream, bool is_async, const char* name) {
  for (size_t z = 0; z < extent.depth; ++z) {
    char* const target = corner(to, {to_at.x, to_at.y, to_at.z + z});
    const char* const source = corner(from, {from_at.x, from_at.y, from_at.z + z});
    const bool is_one = extent.width == to.pitch && extent.width == from.pitch;
    const cudaError_t error = is_one ? copy(target, source, extent.width * extent.height, stream, is_async, name)
                                     : copy_rows(target, to.pitch, source, from.pitch, extent.width, extent.height, stream, is_async, name);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t copy_peers(const cudaMemcpy3DPeerParms& box, cudaStream_t stream, bool is_async, const char* name) {
  if (box.srcArray || box.dstArray) return finish(cudaErrorNotSupported);
  return copy_slices(box.dstPtr, box.dstPos, box.srcPtr, box.srcPos, box.extent, stream, is_async, name);
}

cudaError_t fill_box(const cudaPitchedPtr& memory, int byte, const cudaExtent& extent, cudaStream_t stream, bool is_async, const char* name) {
  for (size_t z = 0; z < extent.depth; ++z) {
    const cudaError_t error = fill_rows(corner(memory, {0, 0, z}), memory.pitch, uint8_t(byte), extent.width, extent.height, stream, is_async, name);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

namespace pkb::emulator {

cudaError_t copy_box(const cudaMemcpy3DParms& box, cudaStream_t stream, bool is_async, const char* name) {
  if (box.srcArray || box.dstArray) return finish(cudaErrorNotSupported);
  return copy_slices(box.dstPtr, box.dstPos, box.srcPtr, box.srcPos, box.extent, stream, is_async, name);
}

}  // namespace pkb::emulator

PKB_CUDART cudaError_t cudaMalloc3D(cudaPitchedPtr* memory, cudaExtent extent) {
  void* pointer;
  size_t pitch;
  const cudaError_t error = cudaMallocPitch(&pointer, &pitch, extent.width, extent.height * extent.depth);
  if (error == cudaSuccess) *memory = {pointer, pitch, extent.width, extent.height};
  return error;
}

PKB_CUDART cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* box) { return copy_box(*box, nullptr, false, "cudaMemcpy3D"); }
PKB_CUDART cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* box, cudaStream_t stream) { return copy_box(*box, stream, true, "cudaMemcpy3DAsync"); }
PKB_CUDART cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* box) { return copy_peers(*box, nullptr, false, "cudaMemcpy3DPeer"); }
PKB_CUDART cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* box, cudaStream_t stream) { return copy_peers(*box, stream, true, "cudaMemcpy3DPeerAsync"); }
PKB_CUDART cudaError_t cudaMemset3D(cudaPitchedPtr memory, int byte, cudaExtent extent) { return fill_box(memory, byte, extent, nullptr, false, "cudaMemset3D"); }
PKB_CUDART cudaError_t cudaMemset3DAsync(cudaPitchedPtr memory, int byte, cudaExtent extent, cudaStream_t stream) { return fill_box(memory, byte, extent, stream, true, "cudaMemset3DAsync"); }

#if CUDART_VERSION >= 13000
// One behind the other, though CUDA promises no order among them.
PKB_CUDART cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count, cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
  for (size_t i = 0; i < count; ++i) {
    const cudaError_t error = copy(to[i], from[i], bytes[i], stream, true, "cudaMemcpyBatchAsync");
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
#endif
