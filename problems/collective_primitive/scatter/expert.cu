// Scatter: the source pushes each rank's block of its stack into that rank's output.
//
// W - 1 blocks cross the link out of the source, each once. Small blocks go as tagged words by way of scratch; larger
// ones straight into the outputs, once their ranks have signalled that their call has begun, and a word from each block of
// the kernel signals its receiver that its part is there (pkb/moves_cuda.h). Bound: link, W - 1 blocks out of the source.
#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  if (src < 0 || src >= W) TVM_FFI_THROW(ValueError) << "expected src in 0.." << W - 1 << ", got " << src;
  const uint64_t block = pkb::contiguous_bytes(out), expected = comm.rank == src ? W * block : block;
  if (pkb::contiguous_bytes(tensor) != expected) {
    TVM_FFI_THROW(ValueError) << "expected a tensor of " << expected << " bytes, got " << pkb::contiguous_bytes(tensor);
  }

  pkb::Moves moves;
  moves.bytes = moves.from_step = block;
  moves.from = static_cast<const char*>(tensor.data_ptr());  // the stack, on the source alone
  moves.to = static_cast<char*>(out.data_ptr());
  moves.sender = int(src);
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
