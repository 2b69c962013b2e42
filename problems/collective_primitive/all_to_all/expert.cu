// AllToAll: every rank pushes its block for each rank into that rank's stack.
//
// W - 1 blocks cross the link into each rank, each once. Small blocks go as tagged words by way of scratch; larger ones
// straight into the peers' outputs, once these have signalled that their call has begun, and a word from each block of the
// kernel signals the receiver that its part is there (pkb/moves_cuda.h). Bound: link, W - 1 blocks in and out a rank.
#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const uint64_t bytes = pkb::contiguous_bytes(tensor), W = comm.world_size;
  if (tensor.ndim() < 1 || tensor.size(0) % W != 0) {
    TVM_FFI_THROW(ValueError) << "expected a first dimension divisible by " << W << ", got shape " << tensor.shape();
  }
  if (pkb::contiguous_bytes(out) != bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << bytes << " bytes, got " << pkb::contiguous_bytes(out);
  }

  pkb::Moves moves;
  moves.bytes = moves.from_step = moves.to_step = bytes / W;
  moves.from = static_cast<const char*>(tensor.data_ptr());
  moves.to = static_cast<char*>(out.data_ptr());
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
