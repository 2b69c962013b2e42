// expect: passed
// without entry: race
// without exit: race
// A one-shot all-reduce by loads of 16 bytes.
#include "common.cuh"

__global__ void sum(bf16* x, bf16* y, int64_t vectors, pkb::Device comm) {
  meet(comm, 0);  // sync: entry
  for (int64_t v = first(); v < vectors; v += step()) {
    float totals[8] = {};
    for (int r = 0; r < comm.world_size; ++r) {
      const uint4 loaded = reinterpret_cast<const uint4*>(comm.peer(x, r))[v];
      for (int k = 0; k < 8; ++k) totals[k] += __bfloat162float(reinterpret_cast<const bf16*>(&loaded)[k]);
    }
    for (int k = 0; k < 8; ++k) y[v * 8 + k] = __float2bfloat16(totals[k]);
  }
  meet(comm, 1);  // sync: exit
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  sum<<<1, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel() / 8, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
