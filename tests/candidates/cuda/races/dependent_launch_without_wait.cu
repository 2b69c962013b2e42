// expect: race
// edge: grid_dependency
// A programmatic dependent launch that reads what the kernel before it writes, and does not wait for that kernel.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

__global__ void first(int* words, int value) {
  cudaTriggerProgrammaticLaunchCompletion();  // from here on the second kernel may run
  words[threadIdx.x] = value + threadIdx.x;
}

__global__ void second(int* words) {
  // right: cudaGridDependencySynchronize();
  words[256 + threadIdx.x] = words[63 - threadIdx.x];  // race
}

__global__ void sum(const bf16* x, bf16* out, int64_t n, pkb::Device comm) {
  comm.barrier_blocks(0);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < comm.world_size; ++r) s += __bfloat162float(comm.peer(x, r)[i]);
    out[i] = __float2bfloat16(s);
  }
  comm.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* const stream = static_cast<cudaStream_t>(comm.cuda_stream());
  int* const words = comm.scratch<int>(0);
  first<<<1, 64, 0, stream>>>(words, int(comm.epoch) * 100);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t shape = {};
  shape.gridDim = 1;
  shape.blockDim = 64;
  shape.stream = stream;
  shape.attrs = &early;
  shape.numAttrs = 1;
  PKB_CUDA(cudaLaunchKernelEx(&shape, second, words));
  sum<<<1, 64, 0, stream>>>(static_cast<const bf16*>(tensor.data_ptr()), static_cast<bf16*>(out.data_ptr()), tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
