// expect: race
// edge: fence_scope
// A one-shot all-reduce that pushes, whose flags follow a fence for its own GPU alone.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void one_shot(const bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, thread = int(threadIdx.x);
  bf16* boxes = comm.scratch<bf16>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < W; ++r) {
    bf16* box = comm.peer(boxes, r) + comm.rank * n;
    for (int64_t i = first; i < n; i += step) box[i] = tensor[i];
  }
  __syncthreads();
  const int slot = int(blockIdx.x) * pkb::kMaxRanks;
  if (thread < W) {
    __threadfence();  // right: __threadfence_system();
    *static_cast<volatile uint64_t*>(comm.signal_word(slot + comm.rank, thread)) = comm.epoch;
    while (*static_cast<volatile uint64_t*>(comm.signal_word(slot + thread, comm.rank)) < comm.epoch) {
    }
    __threadfence_system();
  }
  __syncthreads();
  for (int64_t i = first; i < n; i += step) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += __bfloat162float(boxes[r * n + i]);  // race
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  one_shot<<<2, 128, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
