// expect: runtime_error SIGFPE; divided by zero
// An integer is divided by zero.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  volatile int zero = 0;
  volatile int x = 7 / zero;
  (void)x;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
