// expect: runtime_error caf\xe9 is empty
// A C++ exception whose text is not UTF-8: reading it failed in the kernel's place.
#include <stdexcept>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  throw std::runtime_error("the caf\xe9 is empty");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
