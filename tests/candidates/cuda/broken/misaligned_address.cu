// expect: runtime_error misaligned address
// A 16-byte store at an odd address.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void fault(char* where) {
  asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(where + 1), "r"(1) : "memory");
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  fault<<<1, 1, 0, comm.cuda_stream()>>>(reinterpret_cast<char*>(y));
  static_cast<void>(x);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
