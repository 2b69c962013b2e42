// expect: runtime_error expected contiguous
// A TVM FFI error with its message.
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  TVM_FFI_THROW(ValueError) << "expected contiguous rows";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
