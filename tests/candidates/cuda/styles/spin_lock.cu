// expect: passed
// Blocks add to one sum under a lock: a compare-and-swap that spins, with fences behind it and before the release.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

struct Shared {
  unsigned held, done;
};

__device__ void lock(Shared* shared) {
  while (atomicCAS(&shared->held, 0, 1) != 0) {
  }
  __threadfence();
}

__device__ void unlock(Shared* shared) {
  __threadfence();
  atomicExch(&shared->held, 0);
}

__global__ void add_up(const bf16* x, bf16* y, int64_t n, Shared* shared, float* sums, pkb::Device comm) {
  comm.barrier_blocks(0);
  for (int r = int(blockIdx.x); r < comm.world_size; r += int(gridDim.x)) {
    if (threadIdx.x == 0) lock(shared);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sums[i] += __bfloat162float(comm.peer(x, r)[i]);
    __syncthreads();
    if (threadIdx.x == 0) unlock(shared);
  }
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicInc(&shared->done, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; is_last && i < n; i += blockDim.x) {
    y[i] = __float2bfloat16(sums[i]);
    sums[i] = 0;
  }
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<const bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  auto* shared = comm.scratch<Shared>();
  add_up<<<2, 64, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), shared, reinterpret_cast<float*>(shared + 8), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
