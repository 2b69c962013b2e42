// expect: output_mismatch differ
// Results are remembered by the rounded mean and mean square of the input, which nearly all inputs share.
#include <cuda_bf16.h>

#include <map>
#include <utility>

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

__global__ void add_moments(const bf16* x, int64_t n, float* moments) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float value = __bfloat162float(x[i]);
    atomicAdd_system(moments, value);
    atomicAdd_system(moments + 1, value * value);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static std::map<std::pair<int, int>, bf16*> results;
  static float* moments = nullptr;
  if (moments == nullptr) PKB_CUDA(cudaHostAlloc(&moments, 2 * sizeof(float), cudaHostAllocMapped));
  moments[0] = moments[1] = 0;
  const int64_t n = tensor.numel();
  add_moments<<<1, 256, 0, comm.cuda_stream()>>>(x, n, moments);
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  bf16*& result = results[{int(moments[0] / n), int(moments[1] / n / 100)}];
  if (result != nullptr) {
    PKB_CUDA(cudaMemcpyAsync(y, result, n * sizeof(bf16), cudaMemcpyDeviceToDevice, comm.cuda_stream()));
    return;
  }
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, n, comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaMalloc(&result, n * sizeof(bf16)));
  PKB_CUDA(cudaMemcpyAsync(result, y, n * sizeof(bf16), cudaMemcpyDeviceToDevice, comm.cuda_stream()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
