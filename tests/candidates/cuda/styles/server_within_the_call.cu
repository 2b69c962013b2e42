// expect: passed
// A kernel on a second stream serves tiles that the first kernel posts, until that says it is done; an event joins
// both.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kTile = 32;

__global__ void serve(const bf16* x, bf16* y, int64_t n, volatile unsigned long long* posted, pkb::Device comm) {
  const unsigned long long begin = comm.epoch << 32;
  for (int64_t t = 0; t * kTile < n; ++t) {
    if (threadIdx.x == 0) {
      while (*posted < begin + t + 1) {
      }
      __threadfence();
    }
    __syncthreads();
    const int64_t i = t * kTile + threadIdx.x;
    const bf16* boxes = comm.scratch<bf16>(4096);
    float total = 0;
    if (i < n) {
      for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(boxes[r * n + i]);
      y[i] = __float2bfloat16(total);
    }
  }
}

__global__ void pull(bf16* x, int64_t n, volatile unsigned long long* posted, pkb::Device comm) {
  bf16* boxes = comm.scratch<bf16>(4096);
  const unsigned long long begin = comm.epoch << 32;
  for (int64_t t = 0; t * kTile < n; ++t) {
    const int64_t i = t * kTile + threadIdx.x;
    if (i < n) {
      for (int r = 0; r < comm.world_size; ++r) boxes[r * n + i] = comm.peer(x, r)[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      *posted = begin + t + 1;
    }
  }
}

struct Streams {
  cudaStream_t own;
  cudaEvent_t begun, served;
  Streams() {
    PKB_CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    PKB_CUDA(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    PKB_CUDA(cudaEventCreateWithFlags(&served, cudaEventDisableTiming));
  }
};

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static Streams streams;
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  auto* posted = comm.scratch<unsigned long long>();
  comm.barrier();
  PKB_CUDA(cudaEventRecord(streams.begun, comm.cuda_stream()));
  PKB_CUDA(cudaStreamWaitEvent(streams.own, streams.begun));
  serve<<<1, kTile, 0, streams.own>>>(x, y, tensor.numel(), posted, comm.device());
  PKB_CUDA_LAUNCHED();
  pull<<<1, kTile, 0, comm.cuda_stream()>>>(x, tensor.numel(), posted, comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaEventRecord(streams.served, streams.own));
  PKB_CUDA(cudaStreamWaitEvent(comm.cuda_stream(), streams.served));
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
