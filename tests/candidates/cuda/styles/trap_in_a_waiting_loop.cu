// expect: passed
// A waiting loop with a timeout that ends in __trap(), before a barrier of the block.
#include <cuda_bf16.h>
#include "pkb/symm.h"

using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__device__ void meet(pkb::Device comm, uint64_t want) {
  __syncthreads();
  if (threadIdx.x < comm.world_size) {
    comm.signal(comm.rank, threadIdx.x, want);
    const long long begin = clock64();
    while (pkb::load_acquire(comm.signal_word(threadIdx.x, comm.rank)) < want) {
      if (clock64() - begin > 200000000000ll) __trap();
    }
  }
  __syncthreads();
}
__global__ void sum(const bf16* x, bf16* out, int64_t n, pkb::Device comm) {
  meet(comm, 2 * comm.epoch);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < comm.world_size; ++r) s += __bfloat162float(comm.peer(x, r)[i]);
    out[i] = __float2bfloat16(s);
  }
  meet(comm, 2 * comm.epoch + 1);
}
void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<1, 128, 0, comm.cuda_stream()>>>(static_cast<const bf16*>(tensor.data_ptr()), static_cast<bf16*>(out.data_ptr()), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
