// expect: runtime_error the table is empty; stood at kernel.cpp:9
// A C++ exception.
#include <stdexcept>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  throw std::runtime_error("the table is empty");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
