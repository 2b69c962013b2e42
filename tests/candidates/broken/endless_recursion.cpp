// expect: runtime_error SIGSEGV
// The stack ends.
#include <cstdio>

#include "pkb/bf16.h"
#include "pkb/symm.h"

int deep(int n) {
  volatile char room[4096];
  room[0] = char(n);
  return n ? deep(n + 1) + room[0] : 0;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::printf("%d", deep(1));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
