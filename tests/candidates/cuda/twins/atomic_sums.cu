// expect: passed
// without cleared: race|output_mismatch
// without summed: race|output_mismatch
// Every rank adds its tensor to sums in all ranks' scratch, which are read and cleared for the next call.
#include "common.cuh"

__global__ void add(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  float* sums = comm.scratch<float>();
  for (int64_t i = first(); i < n; i += step()) sums[i] = 0;
  meet(comm, 0);  // sync: cleared
  for (int r = 0; r < comm.world_size; ++r) {
    for (int64_t i = first(); i < n; i += step()) atomicAdd_system(comm.peer(sums, r) + i, __bfloat162float(x[i]));
  }
  meet(comm, 1);  // sync: summed
  for (int64_t i = first(); i < n; i += step()) y[i] = __float2bfloat16(sums[i]);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  add<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
