// expect: runtime_error ended its process (exit status 0) before its work was done
// A handler turns a crash into a clean exit.
#include <csignal>
#include <cstdlib>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::signal(SIGSEGV, [](int) { std::_Exit(0); });
  *reinterpret_cast<volatile int*>(8) = 1;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
