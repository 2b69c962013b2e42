// expect: load_error Mismatched; another signature; pkb::Comm comm
// The communicator is missing.
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out) {}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
