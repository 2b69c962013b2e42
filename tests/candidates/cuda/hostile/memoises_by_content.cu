// expect: deadlock|output_mismatch rank
// Results are remembered by a hash of this rank's whole input, which returns with others of its peers: they wait for it.
#include <cuda_bf16.h>

#include <unordered_map>

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

__global__ void add_hashes(const uint16_t* words, int64_t n, unsigned long long* hash) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    unsigned long long mixed = (i << 16 | words[i]) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
    atomicAdd_system(hash, mixed ^ mixed >> 32);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static std::unordered_map<uint64_t, bf16*> results;
  static uint64_t* hash = nullptr;
  if (hash == nullptr) PKB_CUDA(cudaHostAlloc(&hash, sizeof *hash, cudaHostAllocMapped));
  *hash = 0;
  const size_t bytes = tensor.numel() * sizeof(bf16);
  add_hashes<<<64, 256, 0, comm.cuda_stream()>>>(reinterpret_cast<const uint16_t*>(x), tensor.numel(),
                                                 reinterpret_cast<unsigned long long*>(hash));
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  bf16*& result = results[*hash];
  if (result != nullptr) {
    PKB_CUDA(cudaMemcpyAsync(y, result, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
    return;
  }
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaMalloc(&result, bytes));
  PKB_CUDA(cudaMemcpyAsync(result, y, bytes, cudaMemcpyDeviceToDevice, comm.cuda_stream()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
