// expect: runtime_error Resource temporarily unavailable
// memory_mib: 512
// world_size: 1
// Starts threads until that is refused.
#include <chrono>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  for (;;) std::thread([] { for (;;) std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
