// expect: passed
// without entry: race
// without done: race
// without exit: race
// The last block that is done tells the peers, and waits for theirs.
#include "common.cuh"

__global__ void sum(bf16* x, bf16* y, int64_t n, unsigned* done, pkb::Device comm) {
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(x, i, comm));
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = true;
    __threadfence();
    is_last = (atomicAdd(done, 1) + 1) % gridDim.x == 0;  // sync: done
    __threadfence();
  }
  __syncthreads();
  if (is_last && int(threadIdx.x) < comm.world_size) {
    set_flag(comm.signal_word(512 + comm.rank, int(threadIdx.x)), comm.epoch);
    await_flag(comm.signal_word(512 + int(threadIdx.x), comm.rank), comm.epoch);  // sync: exit
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  sum<<<3, 32, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.scratch<unsigned>(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
