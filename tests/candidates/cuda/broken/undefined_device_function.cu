// expect: compile_error elsewhere
// A device function is declared and never defined.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__device__ float elsewhere(float);

__global__ void use(bf16* y) { y[0] = __float2bfloat16(elsewhere(1.f)); }

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  use<<<1, 1, 0, comm.cuda_stream()>>>(y);
  static_cast<void>(x);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
