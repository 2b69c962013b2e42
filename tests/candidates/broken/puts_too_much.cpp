// expect: runtime_error bytes behind `out`; were overwritten; no tensor lies there
// until: time
// Copies four times the bytes of its output to the next rank, and with them what lies behind, which is alike on all ranks.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  comm.barrier();
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.put(result, result, 4 * n * sizeof(pkb::bf16), (comm.rank + 1) % comm.world_size);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
