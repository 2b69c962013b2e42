// expect: passed
// The last block, by its ticket of atomicAdd, resets the counter by a plain store (CUDA's threadFenceReduction sample). PTX 8.10.6 (causality order, rule 2): each atomic precedes, in observation order, the load that sees its effect, and that
// load precedes the store in program order; so atomic and store are ordered, and there is no race.
#include <cuda_bf16.h>
#include "pkb/symm.h"
using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;
__global__ void sum(const bf16* x, bf16* out, int64_t n, int* counter, pkb::Device comm) {
  comm.barrier_blocks(0);
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float s = 0;
    for (int r = 0; r < comm.world_size; ++r) s += __bfloat162float(comm.peer(x, r)[i]);
    out[i] = __float2bfloat16(s);
  }
  comm.barrier_blocks(1);
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(counter, 1) == gridDim.x - 1) *counter = 0;
  }
}
void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static int* counter = nullptr;
  if (!counter) { PKB_CUDA(cudaMalloc(&counter, 4)); PKB_CUDA(cudaMemset(counter, 0, 4)); }
  sum<<<4, 128, 0, comm.cuda_stream()>>>(static_cast<const bf16*>(tensor.data_ptr()), static_cast<bf16*>(out.data_ptr()), tensor.numel(), counter, comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
