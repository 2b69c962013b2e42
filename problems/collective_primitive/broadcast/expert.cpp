// Broadcast: every rank, the source too, copies the source's tensor from where it lies.
//
// One tensor crosses the link into each rank but the source. The copies run side by side, as soon as the source says
// that its call has begun; it ends when all have read, and the others wait for nobody else. Bound: memory, one read and
// one write of a tensor a rank (ranks that do not share their memory would unload the source with a chain).
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

// Words of the signal pad: the source's call has begun; a reader has its copy. Each rank sets words of its own, since
// the next call may have another source, which may begin before this one's.
constexpr int kBegun = 0, kRead = pkb::kMaxRanks;

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

  if (comm.rank != src) {
    comm.wait(kBegun + int(src));
    comm.get(out.data_ptr(), tensor.data_ptr(), bytes, int(src));
    comm.signal(kRead + comm.rank, int(src));
    return;
  }
  for (int r = 0; r < comm.world_size; ++r) {
    if (r != src) comm.signal(kBegun + int(src), r);
  }
  comm.get(out.data_ptr(), tensor.data_ptr(), bytes, comm.rank);
  for (int r = 0; r < comm.world_size; ++r) {
    if (r != src) comm.wait(kRead + r);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
