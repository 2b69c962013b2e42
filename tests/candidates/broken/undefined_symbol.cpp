// expect: compile_error does not compile: kernel.cpp:9: undefined reference; elsewhere
// A function that nobody defines.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void elsewhere();

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  elsewhere();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
