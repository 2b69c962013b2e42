// expect: race
// edge: no_synchronisation
// Blocks store and load one word with nothing between them; the value was there before.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "pkb/symm.h"
using tvm::ffi::TensorView;
using bf16 = __nv_bfloat16;

// Block 0 publishes a count, block 1 reads it without waiting: right only while the count never changes.
__global__ void unordered(int* words, int count) {
  if (blockIdx.x == 0) words[0] = count;
  if (blockIdx.x == 1) words[64] = words[0] + 1;  // race
}
// A right all-reduce, so that outputs are right whatever else happens.
__global__ void sum(const bf16* x, bf16* y, int n, pkb::Device c) {
  c.barrier_blocks(0);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float s = 0;
    for (int r = 0; r < c.world_size; ++r) s += __bfloat162float(c.peer(x, r)[i]);
    y[i] = __float2bfloat16(s);
  }
  c.barrier_blocks(1);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto s = cudaStream_t(comm.cuda_stream());
  int* words = comm.scratch<int>(0);

  unordered<<<1, 1, 0, s>>>(words, 7);  // an earlier kernel has stored the same
  unordered<<<2, 1, 0, s>>>(words, 7);
  sum<<<1, 64, 0, s>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), int(tensor.numel()), comm.device());
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
