// expect: passed
// until: time
// Includes a header of the library by a macro, and whatever else a preprocessor can do.
#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

#define HEADER(name) <name>
#include HEADER(algorithm)
#if __has_include(<vector>)
#include <bits/../vector>
#endif

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  comm.barrier();
  std::vector<float> sums(n);
  for (int64_t i = 0; i < n; ++i) sums[i] = sum_at(tensor, comm, i);
  std::transform(sums.begin(), sums.end(), result, [](float sum) { return pkb::bf16(sum); });
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
