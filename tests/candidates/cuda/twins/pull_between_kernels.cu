// expect: passed
// without entry: race
// without exit: race
// Ranks meet in kernels of their own, in front of the one that reads peers' tensors and behind it.
#include "common.cuh"

__global__ void rendezvous(int phase, pkb::Device comm) { meet(comm, phase); }

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(x, i, comm));
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const auto stream = comm.cuda_stream();
  rendezvous<<<1, 32, 0, stream>>>(0, comm.device());  // sync: entry
  sum<<<2, 64, 0, stream>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  rendezvous<<<1, 32, 0, stream>>>(1, comm.device());  // sync: exit
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
