// expect: race
// edge: stream_order
// An all-reduce that pulls on the stream of the call and adds up on a stream of its own, which waits for no event.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void add_up(const bf16* boxes, bf16* out, int64_t n, int ranks) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int64_t i = first; i < n; i += step) {
    float total = 0;
    for (int r = 0; r < ranks; ++r) total += __bfloat162float(boxes[r * n + i]);  // race
    out[i] = __float2bfloat16(total);
  }
}

struct Streams {
  cudaStream_t own;
  cudaEvent_t pulled, added;
  Streams() {
    PKB_CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    PKB_CUDA(cudaEventCreateWithFlags(&pulled, cudaEventDisableTiming));
    PKB_CUDA(cudaEventCreateWithFlags(&added, cudaEventDisableTiming));
  }
};

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static Streams streams;
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  auto* boxes = comm.scratch<bf16>();
  const int64_t n = tensor.numel();
  comm.barrier();
  for (int r = 0; r < comm.world_size; ++r) comm.get(boxes + r * n, x, n * sizeof(bf16), r);
  comm.barrier();
  PKB_CUDA(cudaEventRecord(streams.pulled, comm.cuda_stream()));
  // right: PKB_CUDA(cudaStreamWaitEvent(streams.own, streams.pulled));
  add_up<<<2, 64, 0, streams.own>>>(boxes, y, n, comm.world_size);
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaEventRecord(streams.added, streams.own));
  PKB_CUDA(cudaStreamWaitEvent(comm.cuda_stream(), streams.added));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
