// expect: output_mismatch seem to be remembered
// Results are remembered by the address of the argument; each address returns with other contents.
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::map<const void*, std::vector<pkb::bf16>> results;
  const auto* x = static_cast<const pkb::bf16*>(tensor.data_ptr());
  auto* y = static_cast<pkb::bf16*>(out.data_ptr());
  auto& result = results[x];
  if (!result.empty()) {
    std::memcpy(y, result.data(), result.size() * sizeof(pkb::bf16));
    return;
  }
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    y[i] = pkb::bf16(sum);
  }
  comm.barrier();
  result.assign(y, y + out.numel());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
