// expect: race
// edge: no_synchronisation
// A one-shot all-reduce that pushes, whose first block signals for all of them: nothing has it wait for the others.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__device__ __forceinline__ void await_own_blocks(unsigned long long* done, const pkb::Device& comm) {
  if (threadIdx.x == 0) {
    __threadfence_system();
    atomicAdd(done, 1ull);
    while (blockIdx.x == 0 && *static_cast<volatile unsigned long long*>(done) < comm.epoch * gridDim.x) {
    }
    __threadfence_system();
  }
  __syncthreads();
}

__global__ void one_shot(const bf16* tensor, bf16* out, int64_t n, unsigned long long* done, pkb::Device comm) {
  const int W = comm.world_size, thread = int(threadIdx.x);
  bf16* boxes = comm.scratch<bf16>(4096 + comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < W; ++r) {
    bf16* box = comm.peer(boxes, r) + comm.rank * n;
    for (int64_t i = first; i < n; i += step) box[i] = tensor[i];
  }
  __syncthreads();
  // right: await_own_blocks(done, comm);
  if (blockIdx.x == 0 && thread < W) comm.signal(comm.rank, thread);
  if (thread < W) comm.wait(thread);
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
  auto* done = comm.scratch<unsigned long long>();
  one_shot<<<4, 32, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), done, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
