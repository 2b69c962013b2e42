// expect: compile_error longer than 3 s
// compile_timeout_s: 3
// The compiler is kept busy for ever.
#include "pkb/bf16.h"
#include "pkb/symm.h"

constexpr long count(long n) {
  long sum = 0;
  for (long i = 0; i < n; ++i) sum += i ^ n;
  return sum;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  out.data_ptr();
  constexpr long n = count(1L << 60);
  static_assert(n > 0, "");
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
