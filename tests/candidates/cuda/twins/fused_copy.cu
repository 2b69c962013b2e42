// expect: passed
// without copied: race|output_mismatch
// without exit: race|output_mismatch
// Each block copies its part into scratch, and its first threads tell the same block of each peer: not before all of its
// threads have copied. PyTorch's one_shot_all_reduce_copy came without that synchronisation.
#include "common.cuh"

__device__ void tell_and_wait(const pkb::Device& comm, int slot) {
  const int peer = int(threadIdx.x);
  if (peer >= comm.world_size || peer == comm.rank) return;
  comm.signal_block(slot, peer);
  comm.wait_block(slot, peer);
}

__global__ void sum(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  bf16* copied = comm.scratch<bf16>();
  for (int64_t i = first(); i < n; i += step()) copied[i] = x[i];
  __syncthreads();  // sync: copied
  tell_and_wait(comm, 0);
  __syncthreads();
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(copied, i, comm));
  __syncthreads();         // sync: exit
  tell_and_wait(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
