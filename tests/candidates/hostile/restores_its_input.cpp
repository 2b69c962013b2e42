// expect: passed
// Scribbles over its argument and puts it back before it returns: no harm done.
#include <cstring>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::vector<char> kept(tensor.numel() * 2);
  std::memcpy(kept.data(), tensor.data_ptr(), kept.size());
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
  std::memset(tensor.data_ptr(), 0, kept.size());
  std::memcpy(tensor.data_ptr(), kept.data(), kept.size());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
