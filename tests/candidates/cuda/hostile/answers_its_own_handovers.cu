// expect: passed|race|integrity|output_mismatch rank
// until: time
// Tells the mailbox that the stream has come one handover further than it has, so that the next one finds its message.
// What it saves is less than a handover; see docs/security.md, What remains.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

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

constexpr size_t kControlBytes = 4096;  // of a rank's control pages, behind which its mailbox begins

// The first word of a mailbox counts the handovers that the rank has come to.
__global__ void run_ahead(volatile uint64_t* reached) { *reached = *reached + 1; }

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();

  static uint64_t calls = 0;
  if (++calls < 40) return;
  auto* control = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(comm.place) & ~uintptr_t(4095));
  run_ahead<<<1, 1, 0, comm.cuda_stream()>>>(reinterpret_cast<volatile uint64_t*>(control + kControlBytes));
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
