// expect: out_of_memory bad_alloc
// memory_mib: 512
// Takes memory until there is none.
#include <cstring>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  for (;;) std::memset(new char[64 << 20], 1, 64 << 20);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
