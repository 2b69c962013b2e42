// Scatter: every rank copies its own block out of the source's stack, from where it lies.
//
// W - 1 blocks cross the link out of the source, each once. The copies run side by side, and no rank ever waits for
// another: inputs are ready when the call starts, and each output is written by its own rank alone. Bound: memory, one
// read and one write of a block a rank.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

uint64_t bytes_of(const TensorView& x) {
  const uint64_t bits = uint64_t(x.dtype().bits) * x.dtype().lanes;
  if (bits % 8 != 0) TVM_FFI_THROW(TypeError) << "expected elements of whole bytes, got " << x.dtype();
  if (!x.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << x.strides();
  }
  return uint64_t(x.numel()) * bits / 8;
}

}  // namespace

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = bytes_of(out);
  if (src < 0 || src >= W) TVM_FFI_THROW(ValueError) << "expected src in 0.." << W - 1 << ", got " << src;
  // The stack stands on the source only; elsewhere the tensor is a template of one block, at the same address.
  const uint64_t expected = comm.rank == src ? W * block : block;
  if (bytes_of(tensor) != expected) {
    TVM_FFI_THROW(ValueError) << "expected a tensor of " << expected << " bytes, got " << bytes_of(tensor);
  }

  comm.get(out.data_ptr(), static_cast<const char*>(tensor.data_ptr()) + comm.rank * block, block, int(src));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
