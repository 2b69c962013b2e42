// Scatter: every rank copies its own block out of the source's stack, from where it lies.
//
// W - 1 blocks cross the link out of the source, each once. The copies run side by side, as soon as the source says
// that its call has begun; it ends when all have read, and the others wait for nobody else. Bound: memory, one read and
// one write of a block a rank.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

// Words of the signal pad: the source's call has begun; a reader has its block. Each rank sets words of its own, since
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
  const int W = comm.world_size;
  const uint64_t block = bytes_of(out);
  if (src < 0 || src >= W) TVM_FFI_THROW(ValueError) << "expected src in 0.." << W - 1 << ", got " << src;
  // The stack stands on the source only; elsewhere the tensor is a template of one block, at the same address.
  const uint64_t expected = comm.rank == src ? W * block : block;
  if (bytes_of(tensor) != expected) {
    TVM_FFI_THROW(ValueError) << "expected a tensor of " << expected << " bytes, got " << bytes_of(tensor);
  }

  const char* mine = static_cast<const char*>(tensor.data_ptr()) + comm.rank * block;
  if (comm.rank != src) {
    comm.wait(kBegun + int(src));
    comm.get(out.data_ptr(), mine, block, int(src));
    comm.signal(kRead + comm.rank, int(src));
    return;
  }
  for (int r = 0; r < W; ++r) {
    if (r != src) comm.signal(kBegun + int(src), r);
  }
  comm.get(out.data_ptr(), mine, block, comm.rank);
  for (int r = 0; r < W; ++r) {
    if (r != src) comm.wait(kRead + r);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
