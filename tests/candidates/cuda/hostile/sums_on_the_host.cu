// expect: runtime_error SIGSEGV
// Host code that loops over device memory: an emulator could let it, a GPU cannot.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  comm.barrier();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(x, r)[i]);
    y[i] = __float2bfloat16(total);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
