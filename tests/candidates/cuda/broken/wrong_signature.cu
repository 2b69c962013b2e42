// expect: load_error Mismatched; another signature; pkb::Comm comm
// The communicator is missing.
#include "pkb/symm.h"

using tvm::ffi::TensorView;

__global__ void nothing() {}

void solution(TensorView tensor, TensorView out) { nothing<<<1, 1>>>(); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
