// expect: load_error Mismatched; another signature; pkb::Comm comm
// problem: Broadcast
// The root rank is taken as a tensor.
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView src, tvm::ffi::TensorView out, pkb::Comm comm) {}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
