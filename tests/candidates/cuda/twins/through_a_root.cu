// expect: passed
// without entry: race|output_mismatch
// without middle: race|output_mismatch
// Rank 0 sums up into its scratch; the others read the result there, and begin the next call when they have.
#include "common.cuh"

__global__ void sum(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  bf16* result = comm.scratch<bf16>();
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); comm.rank == 0 && i < n; i += step()) result[i] = __float2bfloat16(sum_at(x, i, comm));
  meet(comm, 1);  // sync: middle
  for (int64_t i = first(); i < n; i += step()) y[i] = comm.peer(result, 0)[i];
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
