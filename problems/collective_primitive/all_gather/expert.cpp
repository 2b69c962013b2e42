// AllGather: every rank copies each rank's block from where it lies into its own stack.
//
// W - 1 blocks cross the link into each rank, each once, and nothing is staged. A rank says at once that its call has
// begun, copies its own block, and then one block after the other as its peers begin; it ends when all of them have
// read its own. Bound: memory, one read and one write of W blocks a rank.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

// Words of the signal pad, one for each peer: its call has begun; it has read this rank's block.
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

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = bytes_of(tensor);
  if (bytes_of(out) != W * block) {
    TVM_FFI_THROW(ValueError) << "expected out of " << W << " * " << block << " bytes, got " << bytes_of(out);
  }

  char* stack = static_cast<char*>(out.data_ptr());
  for (int step = 1; step < W; ++step) comm.signal(kBegun + comm.rank, (comm.rank + step) % W);
  comm.get(stack + comm.rank * block, tensor.data_ptr(), block, comm.rank);
  for (int step = 1; step < W; ++step) {
    const int source = (comm.rank + step) % W;  // no two ranks read from the same one at a time
    comm.wait(kBegun + source);
    comm.get(stack + source * block, tensor.data_ptr(), block, source);
    comm.signal(kRead + comm.rank, source);
  }
  for (int step = 1; step < W; ++step) comm.wait(kRead + (comm.rank + step) % W);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
