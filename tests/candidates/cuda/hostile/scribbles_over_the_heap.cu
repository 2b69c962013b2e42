// expect: runtime_error|race|output_mismatch rank
// Rank 0 fills every rank's segment with ones, signals, scratch and arguments among it.
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
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  for (int r = 0; comm.rank == 0 && r < comm.world_size; ++r) {
    PKB_CUDA(cudaMemset(comm.segments[r], 0xff, comm.segment_bytes));
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
