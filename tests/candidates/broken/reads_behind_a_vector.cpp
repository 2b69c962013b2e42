// expect: runtime_error vector::_M_range_check; stood at kernel.cpp:9
// An exception that the standard library throws: it knows no line of the kernel.
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::vector<float>(4).at(size_t(tensor.numel()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
