// UlyssesAllGather: every rank pushes its tensor into all ranks' stacks.
//
// W - 1 tensors cross the link into each rank, each once. Small ones go as tagged words by way of scratch; larger ones
// straight into the peers' outputs, once these have signalled that their call has begun, and a word from each block of
// the kernel signals the receiver that its part is there (pkb/moves_cuda.h).
//
// Bound: link, W - 1 tensors into each rank; on one rank memory, a read and a write.
//
// Left on the table: NVLink multicast would send each tensor once instead of W - 1 times.
#include "pkb/moves_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView x, int64_t group, TensorView out, pkb::Comm comm) {
  pkb::Moves moves;
  moves.bytes = moves.to_step = pkb::contiguous_bytes(x);
  moves.from = static_cast<const char*>(x.data_ptr());
  moves.to = static_cast<char*>(out.data_ptr());
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  if (pkb::contiguous_bytes(out) != comm.world_size * moves.bytes) {
    TVM_FFI_THROW(ValueError) << "expected out of " << comm.world_size << " * " << moves.bytes << " bytes, got "
                              << pkb::contiguous_bytes(out);
  }
  moves.launch_with_signals(comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
