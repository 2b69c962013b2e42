// expect: passed
// without entry: race|output_mismatch
// without parity: race|output_mismatch
// Each call copies its tensor into one half of its scratch, from where its peers read it: one meeting is enough.
#include "common.cuh"

__global__ void sum(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  bf16* half = comm.scratch<bf16>();
  half += comm.epoch % 2 * n;  // sync: parity
  for (int64_t i = first(); i < n; i += step()) half[i] = x[i];
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sum_at(half, i, comm));
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
