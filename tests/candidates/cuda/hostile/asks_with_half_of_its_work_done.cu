// expect: integrity late_output
// until: time
// world_size: 1
// Asks for its next call when half of its outputs are there.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr size_t kControlBytes = 4096;  // of a rank's control pages, behind which its mailbox begins
constexpr uint64_t kHonestCalls = 40;
constexpr unsigned kBlocks = 1, kThreads = 32;  // slow, so that what is asked for early is early by far

// The first word of a mailbox counts the handovers that the rank has come to.
volatile uint64_t* reached_word(const pkb::Comm& comm) {
  auto* control = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(comm.place) & ~uintptr_t(4095));
  return reinterpret_cast<volatile uint64_t*>(control + kControlBytes);
}

__global__ void sum(bf16* tensor, bf16* out, int64_t n, volatile uint64_t* reached, pkb::Device comm) {
  comm.barrier_blocks(0);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    if (reached && i == n / 2) *reached = *reached + 1;
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static uint64_t calls = 0;
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  volatile uint64_t* reached = ++calls > kHonestCalls ? reached_word(comm) : nullptr;
  sum<<<kBlocks, kThreads, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), reached, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
