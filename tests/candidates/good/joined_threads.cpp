// expect: passed
// until: time
// Threads of its own in every call, joined before it ends.
#include <thread>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  comm.barrier();
  std::vector<std::thread> threads;
  for (int part = 0; part < 3; ++part) {
    threads.emplace_back([&, part] {
      for (int64_t i = part * n / 3; i < (part + 1) * n / 3; ++i) result[i] = pkb::bf16(sum_at(tensor, comm, i));
    });
  }
  for (auto& thread : threads) thread.join();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
