// expect: runtime_error illegal memory access
// A kernel reads memory that has been freed.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  bf16* copy = nullptr;
  const size_t bytes = size_t(64) << 20;
  PKB_CUDA(cudaMalloc(&copy, bytes));
  PKB_CUDA(cudaFree(copy));
  PKB_CUDA(cudaMemsetAsync(y, 0, tensor.numel() * sizeof(bf16), comm.cuda_stream()));
  // Alone, so that an address outside all segments is what is read.
  pkb::Device alone = comm.device();
  alone.world_size = 1;
  alone.segments[0] = alone.segments[alone.rank];
  sum<<<64, 256, 0, comm.cuda_stream()>>>(copy + comm.rank, y, tensor.numel(), alone);
  PKB_CUDA_LAUNCHED();
  static_cast<void>(x);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
