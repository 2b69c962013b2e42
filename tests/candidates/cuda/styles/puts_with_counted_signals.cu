// expect: passed
// Each block puts its part into every peer, then adds to the peer's signal, as NVSHMEM's put with signal does.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void exchange(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int W = comm.world_size;
  bf16* boxes = comm.scratch<bf16>(4096 + comm.epoch % 2 * (comm.scratch_bytes / 2));
  auto* signals = comm.scratch<unsigned long long>();
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < W; ++r) {
    for (int64_t i = first; i < n; i += step) comm.peer(boxes, r)[comm.rank * n + i] = x[i];
  }
  __threadfence_system();
  __syncthreads();
  if (int(threadIdx.x) < W) {
    __threadfence_system();
    atomicAdd_system(comm.peer(signals, int(threadIdx.x)) + comm.rank, 1ull);
    const volatile unsigned long long* signal = signals + threadIdx.x;
    while (*signal < comm.epoch * gridDim.x) {
    }
    __threadfence_system();
  }
  comm.hold();
  __syncthreads();
  for (int64_t i = first; i < n; i += step) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += __bfloat162float(boxes[r * n + i]);
    y[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<const bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  exchange<<<2, 64, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
