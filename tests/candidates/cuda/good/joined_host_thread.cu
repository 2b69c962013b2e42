// expect: passed
// until: time
// A thread of the host launches half of the work, and is joined before the call ends.
#include <thread>
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__device__ __forceinline__ float sum_at(bf16* tensor, int64_t i, const pkb::Device& comm) {
  float total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
  return total;
}

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads)
    y[i] = __float2bfloat16(sum_at(x, i, comm));
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  int gpu = 0;
  PKB_CUDA(cudaGetDevice(&gpu));
  comm.barrier();
  const int64_t middle = n / 2;
  std::thread other([&] {
    cudaSetDevice(gpu);
    sum<<<16, 256, 0, comm.cuda_stream()>>>(x, y, middle, comm.device());
  });
  sum<<<16, 256, 0, comm.cuda_stream()>>>(x + middle, y + middle, n - middle, comm.device());
  other.join();
  PKB_CUDA_LAUNCHED();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
