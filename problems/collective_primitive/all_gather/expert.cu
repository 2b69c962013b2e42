// AllGather: every rank pushes its block into all ranks' stacks.
//
// W - 1 blocks cross the link into each rank, each once. Small blocks go as tagged words by way of scratch; larger ones
// straight into the peers' outputs, once these have signalled that their call has begun, and a word from each block of the
// kernel signals the receiver that its part is there (pkb/moves_cuda.h). Bound: link, W - 1 blocks in and out a rank.
#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  pkb::Moves moves;
  moves.bytes = moves.to_step = pkb::contiguous_bytes(tensor);
  moves.from = static_cast<const char*>(tensor.data_ptr());
  moves.to = static_cast<char*>(out.data_ptr());
  if (pkb::contiguous_bytes(out) != comm.world_size * moves.bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << comm.world_size << " * " << moves.bytes << " bytes, got "
                              << pkb::contiguous_bytes(out);
  }
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
