// Gather: the other ranks push their blocks into the root's stack, and the root helps by fetching the end of each.
//
// W - 1 blocks cross the link into the root, each once. Every rank but the root copies its block into its own output
// too, 2 W - 1 copies in all; the root fetches 1 / W of each foreign block, so that every rank copies (2 W - 1) / W
// blocks. Inputs are ready when the call starts and each byte of an output is written by one rank, so no rank waits
// for another. Bound: memory, one read and one write of that much a rank.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kLineBytes = 64;  // the fetched parts begin at cache lines

uint64_t bytes_of(const TensorView& x) {
  const uint64_t bits = uint64_t(x.dtype().bits) * x.dtype().lanes;
  if (bits % 8 != 0) TVM_FFI_THROW(TypeError) << "expected elements of whole bytes, got " << x.dtype();
  if (!x.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << x.strides();
  }
  return uint64_t(x.numel()) * bits / 8;
}

}  // namespace

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = bytes_of(tensor);
  if (dst < 0 || dst >= W) TVM_FFI_THROW(ValueError) << "expected dst in 0.." << W - 1 << ", got " << dst;
  const uint64_t expected = comm.rank == dst ? W * block : block;
  if (bytes_of(out) != expected) {
    TVM_FFI_THROW(ValueError) << "expected out of " << expected << " bytes, got " << bytes_of(out);
  }

  const char* mine = static_cast<const char*>(tensor.data_ptr());
  char* stack = static_cast<char*>(out.data_ptr());  // the root's stack stands at the address of the others' outputs
  const uint64_t fetched = block / W / kLineBytes * kLineBytes;
  const uint64_t pushed = block - fetched;
  if (comm.rank != dst) {
    comm.put(stack + comm.rank * block, mine, pushed, int(dst));
    comm.put(out.data_ptr(), mine, block, comm.rank);
    return;
  }
  for (int step = 0; step < W; ++step) {
    const int source = (comm.rank + step) % W;
    const uint64_t from = source == dst ? 0 : pushed;
    comm.get(stack + source * block + from, mine + from, block - from, source);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
