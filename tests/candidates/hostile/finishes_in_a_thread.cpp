// expect: race|integrity late_output
// Returns at once and works on in a detached thread.
#include <chrono>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    auto* result = static_cast<pkb::bf16*>(out.data_ptr());
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      float sum = 0;
      for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
      result[i] = pkb::bf16(sum);
    }
  }).detach();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
