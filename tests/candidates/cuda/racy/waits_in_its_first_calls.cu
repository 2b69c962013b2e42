// expect: race|integrity|output_mismatch rank
// until: time
// Keeps the call contract while it is checked and in the first timed calls, and waits for nobody from then on.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr uint64_t kHonestCalls = 60;

__global__ void sum(bf16* tensor, bf16* out, int64_t n, bool waits, pkb::Device comm) {
  if (waits) comm.barrier_blocks(0);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
  if (waits) comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.epoch < kHonestCalls, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
