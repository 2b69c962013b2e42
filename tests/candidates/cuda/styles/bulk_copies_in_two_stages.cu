// expect: passed
// edge: proxy_fence
// A thread feeds two stages of shared memory by bulk copies of all ranks' tensors; mbarriers say when one is full and
// empty. As in pipelines of libraries, no proxy fence stands between the last load of a tile and the next copy into it.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kTile = 32, kStages = 2;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void wait_phase(const uint64_t* mbarrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
          shared_address(mbarrier)),
      "r"(parity)
      : "memory");
}

__global__ void add_up(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  __shared__ alignas(128) bf16 tiles[kStages][kTile];
  __shared__ alignas(8) uint64_t full[kStages], empty[kStages];
  const int W = comm.world_size;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + s)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(empty + s)), "r"(kTile) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int64_t tiles_of_block = (n / kTile - blockIdx.x + gridDim.x - 1) / gridDim.x;
  if (threadIdx.x == kTile) {
    for (int64_t k = 0; k < tiles_of_block * W; ++k) {
      const int stage = int(k % kStages);
      if (k >= kStages) wait_phase(empty + stage, unsigned(k / kStages - 1) % 2);
      const bf16* from = comm.peer(x, int(k % W)) + (blockIdx.x + k / W * gridDim.x) * kTile;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full + stage)),
                   "r"(unsigned(sizeof tiles[0]))
                   : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(tiles[stage])),
                   "l"(from), "r"(unsigned(sizeof tiles[0])), "r"(shared_address(full + stage))
                   : "memory");
    }
  } else if (threadIdx.x < kTile) {
    float total = 0;
    for (int64_t k = 0; k < tiles_of_block * W; ++k) {
      const int stage = int(k % kStages);
      wait_phase(full + stage, unsigned(k / kStages) % 2);
      total += __bfloat162float(tiles[stage][threadIdx.x]);
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(empty + stage)) : "memory");
      if (k % W == W - 1) {
        y[(blockIdx.x + k / W * gridDim.x) * kTile + threadIdx.x] = __float2bfloat16(total);
        total = 0;
      }
    }
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  comm.barrier();
  add_up<<<3, 64, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
