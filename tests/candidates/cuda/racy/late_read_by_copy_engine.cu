// expect: race rank; 's `tensor` after rank; had finished
// race: late_read
// A copy engine fetches the peers' tensors; nobody waits at the end until peers have fetched its own.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void sum_slices(const bf16* slices, bf16* out, int64_t n, int count) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float total = 0;
    for (int r = 0; r < count; ++r) total += __bfloat162float(slices[r * n + i]);
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  auto* inbox = comm.scratch<bf16>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  comm.barrier();
  for (int r = 0; r < comm.world_size; ++r) comm.get(inbox + r * n, x, n * sizeof(bf16), r);
  sum_slices<<<64, 256, 0, comm.cuda_stream()>>>(inbox, y, n, comm.world_size);
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
