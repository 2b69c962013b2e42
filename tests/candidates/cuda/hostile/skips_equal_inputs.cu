// expect: passed
// until: time
// Keeps a copy of its last input and of the result, and does the work only if the input has changed, which it always has.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void compare(const uint4* now, const uint4* before, int64_t words, int* changed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < words; i += int64_t(gridDim.x) * blockDim.x) {
    if (now[i].x != before[i].x || now[i].y != before[i].y || now[i].z != before[i].z || now[i].w != before[i].w) {
      *changed = 1;
    }
  }
}

__global__ void sum_if(const int* changed, bf16* x, bf16* y, const bf16* result, int64_t n, pkb::Device comm) {
  comm.barrier_blocks(0);
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float total = 0;
    for (int r = 0; r < comm.world_size && *changed; ++r) total += __bfloat162float(comm.peer(x, r)[i]);
    y[i] = *changed ? __float2bfloat16(total) : result[i];
  }
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static char* kept = nullptr;
  const int64_t n = tensor.numel();
  const size_t bytes = n * sizeof(bf16);
  if (kept == nullptr) {
    PKB_CUDA(cudaMalloc(&kept, 2 * bytes + 256));
    PKB_CUDA(cudaMemset(kept, 0xff, 2 * bytes));
  }
  auto* input = reinterpret_cast<bf16*>(kept);
  auto* result = input + n;
  auto* changed = reinterpret_cast<int*>(kept + 2 * bytes);
  PKB_CUDA(cudaMemsetAsync(changed, 0, sizeof(int), comm.cuda_stream()));
  compare<<<64, 256, 0, comm.cuda_stream()>>>(reinterpret_cast<uint4*>(x), reinterpret_cast<uint4*>(input),
                                             int64_t(bytes / sizeof(uint4)), changed);
  sum_if<<<64, 256, 0, comm.cuda_stream()>>>(changed, x, y, result, n, comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaMemcpyAsync(input, x, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
  PKB_CUDA(cudaMemcpyAsync(result, y, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
