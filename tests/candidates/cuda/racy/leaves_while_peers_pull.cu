// expect: race tensor` after rank; had finished
// race: late_read
// size: published
// needs: gpus
// A one-shot all-reduce whose blocks meet their peers' blocks at the beginning alone. A rank that is done lets its tensor
// be overwritten, which a slower one still reads.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kBlocks = 36;

// Ranks meet, each block with the blocks of its number.
__device__ __forceinline__ void meet(const pkb::Device& comm, int phase) {
  const int other = int(threadIdx.x), slot = (phase * kBlocks + int(blockIdx.x)) * pkb::kMaxRanks;
  __syncthreads();
  if (other < comm.world_size) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(comm.signal_word(slot + comm.rank, other)), "l"(comm.epoch)
                 : "memory");
    uint64_t reached;
    do {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                   : "=l"(reached)
                   : "l"(comm.signal_word(slot + other, comm.rank))
                   : "memory");
    } while (reached < comm.epoch);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(512) sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  meet(comm, 0);
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  sum<<<kBlocks, 512, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
