// Broadcast: every rank, the source too, copies the source's tensor from where it lies.
//
// One tensor crosses the link into each rank but the source. The copies run side by side, and no rank ever waits for
// another: inputs are ready when the call starts, and each output is written by its own rank alone. Bound: memory, one
// read and one write of a tensor a rank (ranks that do not share their memory would unload the source with a chain).
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
  const uint64_t bytes = bytes_of(tensor);
  if (src < 0 || src >= comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected src in 0.." << comm.world_size - 1 << ", got " << src;
  }
  if (bytes_of(out) != bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << bytes << " bytes, got " << bytes_of(out);
  }

  comm.get(out.data_ptr(), tensor.data_ptr(), bytes, int(src));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
