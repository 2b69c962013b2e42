// expect: compile_error shared data
// A block may declare 48 KiB, not 512.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void staged(const bf16* x, bf16* y, int64_t n) {
  __shared__ bf16 tile[262144];
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) tile[i % 262144] = x[i];
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[262143 - i % 262144];
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  staged<<<1, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
