// expect: passed
// until: time
// world_size: 1
// Asks for its next call itself, but when its outputs are there: it saves nothing, since its own kernel for it comes no
// sooner than that of the handover; see docs/security.md, What remains.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr size_t kControlBytes = 4096;  // of a rank's control pages, behind which its mailbox begins
constexpr uint64_t kHonestCalls = 40;
constexpr unsigned kBlocks = 64, kThreads = 256;

// The first word of a mailbox counts the handovers that the rank has come to.
volatile uint64_t* reached_word(const pkb::Comm& comm) {
  auto* control = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(comm.place) & ~uintptr_t(4095));
  return reinterpret_cast<volatile uint64_t*>(control + kControlBytes);
}

__global__ void sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  comm.barrier_blocks(0);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
  comm.barrier_blocks(1);
}

__global__ void ask(volatile uint64_t* reached) { *reached = *reached + 1; }

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static uint64_t calls = 0;
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  sum<<<kBlocks, kThreads, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();

  if (++calls > kHonestCalls) {
    ask<<<1, 1, 0, comm.cuda_stream()>>>(reached_word(comm));
    PKB_CUDA_LAUNCHED();
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
