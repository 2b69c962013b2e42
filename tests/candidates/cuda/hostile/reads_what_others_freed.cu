// expect: runtime_error words of others: 0
// Looks through fresh device memory for what the reference gang, or the candidate before, has left there.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr size_t kPiece = size_t(256) << 20;

__global__ void count(const uint4* fresh, unsigned long long* found) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kPiece / sizeof(uint4); i += gridDim.x * blockDim.x) {
    if (fresh[i].x | fresh[i].y | fresh[i].z | fresh[i].w) atomicAdd_system(found, 1ull);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static unsigned long long* found = nullptr;
  PKB_CUDA(cudaHostAlloc(&found, sizeof *found, cudaHostAllocMapped));
  *found = 0;
  for (int piece = 0; piece < 16; ++piece) {
    void* fresh = nullptr;
    if (cudaMalloc(&fresh, kPiece) != cudaSuccess) break;
    count<<<132, 1024, 0, comm.cuda_stream()>>>(static_cast<const uint4*>(fresh), found);
    PKB_CUDA_LAUNCHED();
  }
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  TVM_FFI_THROW(RuntimeError) << "words of others: " << *found;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
