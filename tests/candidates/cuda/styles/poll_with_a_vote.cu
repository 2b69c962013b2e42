// expect: passed
// Two lanes poll, and a vote of the warp ends the loop.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "pkb/symm.h"

using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__global__ void wait_for_other_block(uint32_t* flag, uint32_t epoch) {
  const int lane = threadIdx.x % 32;
  uint32_t seen = 0;
  if (blockIdx.x == 0) {
    do {
      seen = epoch;
      if (lane < 2) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    } while (__any_sync(~0u, seen < epoch));
  } else if (lane == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
  }
}
__global__ void sum(const bf16* x, bf16* y, int n, pkb::Device c) {
  c.barrier_blocks(0);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < c.world_size; ++r) s += __bfloat162float(c.peer(x, r)[i]);
    y[i] = __float2bfloat16(s);
  }
  c.barrier_blocks(1);
}
void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto s = cudaStream_t(comm.cuda_stream());
  wait_for_other_block<<<2, 32, 0, s>>>(comm.scratch<uint32_t>(0), uint32_t(comm.epoch));
  sum<<<1, 64, 0, s>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
