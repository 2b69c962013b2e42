// expect: passed
// without middle: race|output_mismatch
// without exit: race|output_mismatch
// Each call copies its tensor into scratch, from where its peers read it until all have.
#include "common.cuh"

__global__ void sum(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  bf16* copied = comm.scratch<bf16>();
  for (int64_t i = first(); i < n; i += step()) copied[i] = x[i];
  meet(comm, 0);  // sync: middle
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(copied, i, comm));
  meet(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
