// expect: output_mismatch trial; differ
// Gives the first call's result for ever.
#include <cstring>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::vector<pkb::bf16> first;
  if (!first.empty()) {
    std::memcpy(out.data_ptr(), first.data(), first.size() * sizeof(pkb::bf16));
    return;
  }
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
  first.assign(result, result + out.numel());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
