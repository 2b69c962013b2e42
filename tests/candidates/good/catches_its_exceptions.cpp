// expect: passed
// until: time
// Throws and catches within a call.
#include <stdexcept>

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
  for (int64_t i = 0; i < n; ++i) {
    try {
      if (i % 64 == 0) throw std::runtime_error("of no importance");
      result[i] = pkb::bf16(sum_at(tensor, comm, i));
    } catch (const std::runtime_error&) {
      result[i] = pkb::bf16(sum_at(tensor, comm, i));
    }
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
