// expect: timeout still computing
// Blocks and ignores every signal, then loops.
#include <csignal>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  for (int number = 1; number < 65; ++number) std::signal(number, SIG_IGN);
  for (volatile long i = 0;; i = i + 1) {}
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
