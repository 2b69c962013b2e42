// expect: passed
// without data: race|output_mismatch
// without parity: race|deadlock|output_mismatch
// Packets with one flag for each block: pushed into one half of the peers' scratch, summed up there.
#include "common.cuh"

__global__ void exchange(const bf16* x, bf16* y, int64_t n, pkb::Device comm) {
  const int W = comm.world_size, slot = int(blockIdx.x) * W;
  bf16* inbox = comm.scratch<bf16>();
  inbox += comm.epoch % 2 * W * n;  // sync: parity
  for (int r = 0; r < W; ++r) {
    for (int64_t i = first(); i < n; i += step()) comm.peer(inbox, r)[comm.rank * n + i] = x[i];
  }
  __syncthreads();
  if (int(threadIdx.x) < W) {
    set_flag(comm.signal_word(slot + comm.rank, int(threadIdx.x)), comm.epoch);
    await_flag(comm.signal_word(slot + int(threadIdx.x), comm.rank), comm.epoch);  // sync: data
  }
  __syncthreads();
  for (int64_t i = first(); i < n; i += step()) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += __bfloat162float(inbox[r * n + i]);
    y[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  exchange<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
