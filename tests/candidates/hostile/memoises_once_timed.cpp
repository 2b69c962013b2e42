// expect: integrity wrong_while_timed; wrong while timed
// until: time
// Right while it is checked, stale while it is timed.
#include <cstring>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::vector<pkb::bf16> last;
  if (comm.epoch > 36) {
    std::memcpy(out.data_ptr(), last.data(), last.size() * sizeof(pkb::bf16));
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
  last.assign(result, result + out.numel());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
