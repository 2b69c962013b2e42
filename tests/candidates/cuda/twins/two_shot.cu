// expect: passed
// without entry: race
// without middle: race|output_mismatch
// without exit: race
// A two-shot all-reduce: each rank sums its part, then all gather the parts from the peers' outputs.
#include "common.cuh"

__global__ void two_shot(bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int64_t part = (n + comm.world_size - 1) / comm.world_size;
  meet(comm, 0);  // sync: entry
  for (int64_t i = first(); i < part && comm.rank * part + i < n; i += step()) {
    y[comm.rank * part + i] = __float2bfloat16(sum_at(x, comm.rank * part + i, comm));
  }
  meet(comm, 1);  // sync: middle
  for (int r = 0; r < comm.world_size; ++r) {
    if (r == comm.rank) continue;
    for (int64_t i = first(); i < part && r * part + i < n; i += step()) y[r * part + i] = comm.peer(y, r)[r * part + i];
  }
  meet(comm, 2);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  two_shot<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
