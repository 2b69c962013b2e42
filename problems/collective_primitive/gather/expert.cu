// Gather: every rank pushes its block into the root's stack, and the ranks but the root copy it into their own outputs.
//
// W - 1 blocks cross the link into the root, each once. Small blocks go as tagged words by way of scratch; larger ones
// straight into the root's output, once it has signalled that its call has begun, and a word from each block of the kernel
// signals that its part is there (pkb/moves_cuda.h). Bound: link, W - 1 blocks into the root.
#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView tensor, int64_t dst, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  if (dst < 0 || dst >= W) TVM_FFI_THROW(ValueError) << "expected dst in 0.." << W - 1 << ", got " << dst;
  const uint64_t block = pkb::contiguous_bytes(tensor), expected = comm.rank == dst ? W * block : block;
  if (pkb::contiguous_bytes(out) != expected) {
    TVM_FFI_THROW(ValueError) << "expected out of " << expected << " bytes, got " << pkb::contiguous_bytes(out);
  }

  pkb::Moves moves;
  moves.bytes = moves.to_step = block;
  moves.from = static_cast<const char*>(tensor.data_ptr());
  moves.to = static_cast<char*>(out.data_ptr());  // the root's stack stands where the others' outputs do
  moves.receiver = int(dst);
  if (comm.rank != dst) moves.copy = moves.to;
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
