// expect: runtime_error SIGSEGV; not aligned for a vector instruction; kernel.cpp:7
// An aligned load of 16 bytes, two bytes behind the beginning of a tensor.
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  (void)comm;
  __asm__ volatile("movaps (%0), %%xmm0" ::"r"(static_cast<char*>(tensor.data_ptr()) + 2) : "xmm0", "memory");
  (void)out;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
