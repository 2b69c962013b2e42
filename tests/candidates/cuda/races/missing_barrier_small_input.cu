// expect: race
// edge: block_barrier
// A tree over shared memory without the barrier before it, where the second warp holds zeros.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "pkb/symm.h"
using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__global__ void tree(const int* in, int* out, int n) {
  __shared__ int part[64];
  part[threadIdx.x] = 0;
  __syncthreads();
  int mine = 0;
  for (int i = threadIdx.x; i < n; i += 64) mine += in[i];
  part[threadIdx.x] = mine;
  // right: __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];  // race
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = part[0];
}
__global__ void fill(int* p) { p[threadIdx.x] = threadIdx.x + 1; }
// A right all-reduce, so that outputs are right whatever else happens.
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
  int* words = comm.scratch<int>(0);

  fill<<<1, 64, 0, s>>>(words);
  tree<<<1, 64, 0, s>>>(words, words + 128, 20);  // 20 numbers: lanes 20 .. 63 store the zero that is there
  sum<<<1, 64, 0, s>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
