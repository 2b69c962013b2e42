// expect: passed
// without entry: race|output_mismatch
// without middle: race|output_mismatch
// without exit: race
// A two-shot all-reduce in scratch, into which each call copies its tensor.
#include "common.cuh"

__global__ void two_shot(bf16* y, int64_t n, pkb::Device comm) {
  const int64_t part = (n + comm.world_size - 1) / comm.world_size;
  bf16* copied = comm.scratch<bf16>();
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); i < part && comm.rank * part + i < n; i += step()) {
    copied[comm.rank * part + i] = __float2bfloat16(sum_at(copied, comm.rank * part + i, comm));
  }
  meet(comm, 1);  // sync: middle
  for (int r = 0; r < comm.world_size; ++r) {
    for (int64_t i = first(); i < part && r * part + i < n; i += step()) y[r * part + i] = comm.peer(copied, r)[r * part + i];
  }
  meet(comm, 2);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const int64_t n = tensor.numel();
  cudaMemcpyAsync(comm.scratch<bf16>(), tensor.data_ptr(), n * sizeof(bf16), cudaMemcpyDeviceToDevice, comm.cuda_stream());
  two_shot<<<1, 128, 0, comm.cuda_stream()>>>((bf16*)out.data_ptr(), n, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
