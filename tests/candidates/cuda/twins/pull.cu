// expect: passed
// without entry: race
// without exit: race
// A one-shot all-reduce that reads the peers' tensors between two meetings.
#include "common.cuh"

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(x, i, comm));
  meet(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
