// expect: passed
// until: time
// Prints, in letters of several alphabets and in colours, without a line break or a flush.
#include <cstdio>

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
  static const int printed = std::printf("\033[32mgrün\033[0m, 緑 on rank %d", comm.rank);
  (void)printed;
  comm.barrier();
  for (int64_t i = 0; i < n; ++i) result[i] = pkb::bf16(sum_at(tensor, comm, i));
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
