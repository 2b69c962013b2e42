// expect: passed
// Every thread fences before a barrier of the block and after one; thread 0 alone counts, by relaxed atomics.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void one_shot(const bf16* x, bf16* y, int64_t n, unsigned* counts, pkb::Device comm) {
  bf16* boxes = comm.scratch<bf16>(4096 + comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < comm.world_size; ++r) {
    bf16* box = comm.peer(boxes, r) + comm.rank * n;
    for (int64_t i = first; i < n; i += step) box[i] = x[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int r = 0; r < comm.world_size; ++r) atomicAdd_system(comm.peer(counts, r) + blockIdx.x, 1u);
    const unsigned goal = unsigned(comm.epoch) * unsigned(comm.world_size);
    while (int(*static_cast<volatile unsigned*>(counts + blockIdx.x) - goal) < 0) {
    }
  }
  __syncthreads();
  __threadfence_system();
  comm.hold();
  for (int64_t i = first; i < n; i += step) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(boxes[r * n + i]);
    y[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<const bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  one_shot<<<2, 64, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.scratch<unsigned>(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
