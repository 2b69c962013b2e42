// expect: passed
// until: time
// Memory of its own from the kernel, in large pages where there are any, kept from call to call.
#include <sys/mman.h>

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
  constexpr size_t kBytes = 64 << 20;
  static auto* sums = static_cast<float*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  static const int advised = madvise(sums, kBytes, MADV_HUGEPAGE);
  (void)advised;
  comm.barrier();
  for (int64_t i = 0; i < n; ++i) sums[i] = sum_at(tensor, comm, i);
  for (int64_t i = 0; i < n; ++i) result[i] = pkb::bf16(sums[i]);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
