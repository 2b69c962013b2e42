// expect: passed
// problem: AllGather
// without entry: race
// without exit: race
// An all-gather that writes into the peers' outputs.
#include "common.cuh"

__global__ void gather(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  meet(comm, 0);  // sync: entry
  for (int r = 0; r < comm.world_size; ++r) {
    for (int64_t i = first(); i < n; i += step()) comm.peer(y, r)[comm.rank * n + i] = x[i];
  }
  meet(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  gather<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
