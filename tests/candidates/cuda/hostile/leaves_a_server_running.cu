// expect: timeout no end after
// A kernel of the first call runs on for ever and does the work of all others, each of which waits for it.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

struct Post {
  bf16* tensor;
  bf16* out;
  uint64_t asked, done;
};

__global__ void serve(volatile Post* post, int64_t n, pkb::Device comm) {
  for (uint64_t epoch = 1;; ++epoch) {
    if (threadIdx.x == 0) {
      while (post->asked < epoch) {}
    }
    __syncthreads();
    bf16 *tensor = post->tensor, *out = post->out;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float total = 0;
      for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
      out[i] = __float2bfloat16(total);
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) post->done = epoch;
  }
}

__global__ void hand_over(volatile Post* post, bf16* tensor, bf16* out, uint64_t epoch) {
  post->tensor = tensor;
  post->out = out;
  __threadfence_system();
  post->asked = epoch;
  while (post->done < epoch) {}
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static Post* post = nullptr;
  if (post == nullptr) {
    cudaStream_t aside = nullptr;
    PKB_CUDA(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking));
    PKB_CUDA(cudaHostAlloc(&post, sizeof(Post), cudaHostAllocMapped));
    *post = {};
    serve<<<1, 1024, 0, aside>>>(post, tensor.numel(), comm.device());
  }
  comm.barrier();
  hand_over<<<1, 1, 0, comm.cuda_stream()>>>(post, x, y, comm.epoch);
  PKB_CUDA_LAUNCHED();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
