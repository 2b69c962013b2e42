// expect: passed
// Copy engines put the tensor into every peer's scratch between two barriers of the streams; a kernel adds up.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void add_up(const bf16* inbox, bf16* y, int64_t n, int count) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float total = 0;
    for (int r = 0; r < count; ++r) total += __bfloat162float(inbox[r * n + i]);
    y[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  auto* inbox = comm.scratch<bf16>();
  for (int r = 0; r < comm.world_size; ++r) comm.put(inbox + comm.rank * n, x, n * sizeof(bf16), r);
  comm.barrier();
  add_up<<<64, 256, 0, comm.cuda_stream()>>>(inbox, y, n, comm.world_size);
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // nobody puts the next call's parts before all have read these
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
