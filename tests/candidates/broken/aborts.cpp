// expect: runtime_error SIGABRT; abort()
// It gives up.
#include <cstdlib>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::abort();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
