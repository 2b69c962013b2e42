// expect: runtime_error bytes behind the scratch of 16777216 bytes of rank 0 were overwritten; no tensor lies there
// Clears more than its scratch, and with that its arguments: what lies behind those is not to blame.
#include <cstring>

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
  std::memset(comm.scratch<char>(comm.scratch_bytes - 4096), 0, 1 << 16);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
