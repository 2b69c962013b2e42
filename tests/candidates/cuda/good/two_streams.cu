// expect: passed
// Two halves on two streams of its own, forked from and joined to the stream of the call by events.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static cudaStream_t streams[2] = {};
  static cudaEvent_t fork, joined[2];
  if (streams[0] == nullptr) {
    PKB_CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    for (int half = 0; half < 2; ++half) {
      PKB_CUDA(cudaStreamCreateWithFlags(&streams[half], cudaStreamNonBlocking));
      PKB_CUDA(cudaEventCreateWithFlags(&joined[half], cudaEventDisableTiming));
    }
  }
  const int64_t n = tensor.numel(), middle = n / 2;
  comm.barrier();
  PKB_CUDA(cudaEventRecord(fork, comm.cuda_stream()));
  for (int half = 0; half < 2; ++half) {
    const int64_t first = half ? middle : 0, count = half ? n - middle : middle;
    PKB_CUDA(cudaStreamWaitEvent(streams[half], fork));
    sum<<<32, 256, 0, streams[half]>>>(x + first, y + first, count, comm.device());
    PKB_CUDA_LAUNCHED();
    PKB_CUDA(cudaEventRecord(joined[half], streams[half]));
    PKB_CUDA(cudaStreamWaitEvent(comm.cuda_stream(), joined[half]));
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
