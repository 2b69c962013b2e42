// expect: runtime_error failed check of a debug build; rank 0 stood at kernel.cpp:8
// A table is too short for the largest rank's index; the optimised build goes on with what lies behind it.
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  int table[4] = {};
  volatile int last = 4;
  table[last] = 1;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
