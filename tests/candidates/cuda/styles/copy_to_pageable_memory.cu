// expect: passed
// cudaMemcpyAsync to pageable memory returns once the copy is complete.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__global__ void sum(const bf16* x, bf16* out, int64_t n, int* count, pkb::Device comm) {
  comm.barrier_blocks(0);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < comm.world_size; ++r) s += __bfloat162float(comm.peer(x, r)[i]);
    out[i] = __float2bfloat16(s);
  }
  if (threadIdx.x == 0) *count = int(comm.epoch);
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static int* device = nullptr;
  if (!device) PKB_CUDA(cudaMalloc(&device, sizeof(int)));
  auto* const stream = static_cast<cudaStream_t>(comm.cuda_stream());
  sum<<<1, 128, 0, stream>>>(static_cast<const bf16*>(tensor.data_ptr()), static_cast<bf16*>(out.data_ptr()), tensor.numel(), device, comm.device());
  int count = -1;
  PKB_CUDA(cudaMemcpyAsync(&count, device, sizeof(count), cudaMemcpyDeviceToHost, stream));
  if (count != int(comm.epoch)) TVM_FFI_THROW(ValueError) << "count is " << count;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
