// expect: integrity wrong_while_timed
// until: time
// Right while it is checked; then nothing but the result of call 160, and later no work at all.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  comm.barrier_blocks(0);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static bf16* last = nullptr;
  const size_t bytes = tensor.numel() * sizeof(bf16);
  if (last == nullptr) PKB_CUDA(cudaMalloc(&last, bytes));
  if (comm.epoch > 160) {
    PKB_CUDA(cudaMemcpyAsync(y, last, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
    return;
  }
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaMemcpyAsync(last, y, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
