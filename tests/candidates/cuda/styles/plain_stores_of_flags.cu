// expect: passed
// edge: weak_flag
// Data is pushed into peers' scratch, behind it a fence and a flag by a plain store, which peers poll by volatile loads.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void one_shot(const bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, thread = int(threadIdx.x);
  bf16* boxes = comm.scratch<bf16>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  for (int r = 0; r < W; ++r) {
    bf16* box = comm.peer(boxes, r) + comm.rank * n;
    for (int64_t i = thread; i < n; i += blockDim.x) box[i] = tensor[i];
  }
  __syncthreads();
  if (thread < W) {
    __threadfence_system();
    *comm.signal_word(comm.rank, thread) = comm.epoch;
    while (*static_cast<volatile uint64_t*>(comm.signal_word(thread, comm.rank)) < comm.epoch) {
    }
    __threadfence_system();
  }
  __syncthreads();
  for (int64_t i = thread; i < n; i += blockDim.x) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += __bfloat162float(boxes[r * n + i]);
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  one_shot<<<1, 128, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
