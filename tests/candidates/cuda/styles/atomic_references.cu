// expect: passed
// Flags and a count of blocks by cuda::atomic_ref of libcu++, with the scopes that they need.
#include <cuda_bf16.h>
#include <cuda/atomic>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void one_shot(const bf16* x, bf16* y, int64_t n, unsigned* arrived, pkb::Device comm) {
  bf16* boxes = comm.scratch<bf16>(4096 + comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int r = 0; r < comm.world_size; ++r) {
    bf16* box = comm.peer(boxes, r) + comm.rank * n;
    for (int64_t i = first; i < n; i += step) box[i] = x[i];
  }
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(*arrived);
    is_last = count.fetch_add(1, cuda::memory_order_acq_rel) % gridDim.x == gridDim.x - 1;
  }
  __syncthreads();
  const int thread = int(threadIdx.x);
  if (is_last && thread < comm.world_size) {
    cuda::atomic_ref<uint64_t, cuda::thread_scope_system> flag(*comm.signal_word(comm.rank, thread));
    flag.store(comm.epoch, cuda::memory_order_release);
  }
  if (thread < comm.world_size) {
    cuda::atomic_ref<uint64_t, cuda::thread_scope_system> flag(*comm.signal_word(thread, comm.rank));
    while (flag.load(cuda::memory_order_relaxed) < comm.epoch) {
    }
    cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_system);
  }
  comm.hold();
  __syncthreads();
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
