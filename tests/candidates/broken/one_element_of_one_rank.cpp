// expect: output_mismatch rank 2; 1 of 1536; [31..31, 47..47]
// world_size: 4
// Wrong in the last element of rank 2 alone.
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
  comm.barrier();
  if (comm.rank == 2) result[out.numel() - 1] = pkb::bf16(1000.f);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
