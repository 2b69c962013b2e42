// expect: passed
// problem: AllGather
// without data: race|output_mismatch
// without credit: race|output_mismatch
// A ring: every shard travels through slots of scratch, which a rank fills again when they have been read.
#include "common.cuh"

__global__ void ring(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, next = (comm.rank + 1) % W, before = (comm.rank + W - 1) % W;
  bf16* slots = comm.scratch<bf16>();
  for (int hop = 0; hop < W; ++hop) {
    const int owner = (comm.rank + W - hop) % W;
    if (hop > 0 && threadIdx.x == 0) await_flag(comm.signal_word(hop, comm.rank), comm.epoch);  // sync: data
    if (hop < W - 1 && threadIdx.x == 0) await_flag(comm.signal_word(W + hop + 1, comm.rank), comm.epoch - 1);  // sync: credit
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const bf16 value = hop > 0 ? slots[hop * n + i] : x[i];
      y[owner * n + i] = value;
      if (hop < W - 1) comm.peer(slots, next)[(hop + 1) * n + i] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      if (hop < W - 1) set_flag(comm.signal_word(hop + 1, next), comm.epoch);
      if (hop > 0) set_flag(comm.signal_word(W + hop, before), comm.epoch);
    }
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  ring<<<1, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
