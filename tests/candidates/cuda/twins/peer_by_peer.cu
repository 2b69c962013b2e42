// expect: passed
// without ready: race
// without left: race
// A rank tells each peer apart when its tensor is there and when it has read theirs; none waits for more than it needs.
#include "common.cuh"

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, slot = int(blockIdx.x) * 2 * W, thread = int(threadIdx.x);
  if (thread < W) set_flag(comm.signal_word(slot + comm.rank, thread), comm.epoch);
  if (thread == 0) for (int r = 0; r < W; ++r) await_flag(comm.signal_word(slot + r, comm.rank), comm.epoch);  // sync: ready
  __syncthreads();
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(x, i, comm));
  __syncthreads();
  if (thread < W) set_flag(comm.signal_word(slot + W + comm.rank, thread), comm.epoch);
  if (thread < W) await_flag(comm.signal_word(slot + W + thread, comm.rank), comm.epoch);  // sync: left
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
