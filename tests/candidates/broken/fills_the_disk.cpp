// expect: runtime_error SIGXFSZ; a file grew beyond the limit
// Writes 10 GB into one file.
#include <cstdio>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::vector<char> block(1 << 20, 1);
  FILE* file = std::fopen("big", "wb");
  for (int i = 0; i < 10240; ++i) std::fwrite(block.data(), 1, block.size(), file);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
