// expect: passed
// without entry: race
// without exit: race
// Counters that every rank adds to, compared with multiples of the call's number.
#include "common.cuh"

__device__ void count_up(const pkb::Device& comm, int word) {
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int r = 0; r < comm.world_size; ++r) {
      asm volatile("red.release.sys.global.add.u64 [%0], 1;" ::"l"(comm.signal_word(word, r)) : "memory");
    }
    await_flag(comm.signal_word(word, comm.rank), comm.epoch * comm.world_size * gridDim.x);
  }
  __syncthreads();
}

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  count_up(comm, 0);  // sync: entry
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(x, i, comm));
  count_up(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
