// expect: output_mismatch out (32, 48) bfloat16; indices [31..31, 0..47]
// AllReduce that forgets the last row of rank 1's tensor.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t columns = tensor.size(1), rows = tensor.size(0);
  for (int64_t i = 0; i < rows * columns; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) {
      if (r != 1 || i < (rows - 1) * columns) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    }
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
