// expect: runtime_error 16 bytes behind the scratch of 16777216 bytes of rank 1 were overwritten; no tensor lies there
// Rank 0 writes one vector too many into rank 1's scratch.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  auto* end = comm.peer(comm.scratch<pkb::bf16>(comm.scratch_bytes), 1);
  if (comm.rank == 0) {
    for (int64_t i = -8; i < 8; ++i) end[i] = pkb::bf16(1);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
