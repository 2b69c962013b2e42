// expect: passed
// Two-step: each rank reduces its part and puts it to all, guarded by barriers.
#include <algorithm>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t n = tensor.numel(), part = (n + comm.world_size - 1) / comm.world_size;
  const int64_t begin = comm.rank * part, end = std::min(n, begin + part);
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  for (int r = 0; r < comm.world_size; ++r) {
    if (r != comm.rank && begin < end) comm.put(result + begin, result + begin, (end - begin) * 2, r);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
