// expect: race
// edge: proxy_fence
// Loads of a tile, a block barrier, then a bulk load into the tile; no proxy fence between them.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "pkb/symm.h"
using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__device__ uint32_t at(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__global__ void tiles(const int* in, int* out) {
  __shared__ alignas(128) int tile[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at(&full)) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  int total = 0;
  for (int k = 0; k < 2; ++k) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" ::"r"(at(&full)) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(at(tile)), "l"(in + 64 * k), "r"(at(&full)) : "memory");  // race
    }
    uint32_t done = 0;
    while (!done) asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(&full)), "r"(k) : "memory");
    total += tile[threadIdx.x];
    // right: asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }
  out[threadIdx.x] = total;
}
__global__ void fill(int* p, int v) { p[threadIdx.x] = v + threadIdx.x; }
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

  fill<<<1, 128, 0, s>>>(words, int(comm.epoch) * 1000);
  tiles<<<1, 64, 0, s>>>(words, words + 256);
  sum<<<1, 64, 0, s>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
