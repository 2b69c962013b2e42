// expect: passed
// world_size: 4
// One thread takes peers in order of arrival, so that loads of several flags alternate.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "pkb/symm.h"

using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__device__ uint32_t load(uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ void meet(const pkb::Device& c, int slot) {
  uint32_t* own = c.scratch<uint32_t>(slot * 256);
  const uint32_t epoch = uint32_t(c.epoch);
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    if (lane == 0) {
      for (int r = 0; r < c.world_size; ++r) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(c.peer(own, r) + c.rank), "r"(epoch) : "memory");
    }
    if (lane == 0) {
      uint32_t left = (1u << c.world_size) - 1;
      while (left) {
        for (int r = 0; r < c.world_size; ++r) {
          if (left >> r & 1 && load(own + r) >= epoch) left &= ~(1u << r);  // here what has come from r could be used
        }
      }
    }
  }
  __syncthreads();
}
__global__ void all_reduce(const bf16* x, bf16* y, int n, pkb::Device c) {
  meet(c, 0);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < c.world_size; ++r) s += __bfloat162float(c.peer(x, r)[i]);
    y[i] = __float2bfloat16(s);
  }
  meet(c, 1);
}
void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  all_reduce<<<1, 128, 0, cudaStream_t(comm.cuda_stream())>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
