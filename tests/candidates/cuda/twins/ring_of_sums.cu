// expect: passed
// without data: race|output_mismatch
// without result: race|output_mismatch
// Partial sums travel once round; the last rank keeps the result in its scratch, from where all others read it.
#include "common.cuh"

__global__ void chain(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, last = W - 1;
  float* partial = comm.scratch<float>();
  float* result = partial + n;
  if (comm.rank > 0 && threadIdx.x == 0) await_flag(comm.signal_word(0, comm.rank), comm.epoch);  // sync: data
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float sum = (comm.rank > 0 ? partial[i] : 0) + __bfloat162float(x[i]);
    if (comm.rank < last) comm.peer(partial, comm.rank + 1)[i] = sum;
    else result[i] = sum;
  }
  __syncthreads();
  if (comm.rank < last && threadIdx.x == 0) set_flag(comm.signal_word(0, comm.rank + 1), comm.epoch);
  if (comm.rank == last && int(threadIdx.x) < W) set_flag(comm.signal_word(1, int(threadIdx.x)), comm.epoch);
  if (threadIdx.x == 0) await_flag(comm.signal_word(1, comm.rank), comm.epoch);  // sync: result
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = __float2bfloat16(comm.peer(result, last)[i]);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  chain<<<1, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
