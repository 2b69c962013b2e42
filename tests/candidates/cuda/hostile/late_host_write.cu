// expect: race|integrity|output_mismatch rank
// The results wait in pinned memory; a host function on a side stream lets a copy to the output go on much later.
#include <cuda_bf16.h>

#include <chrono>
#include <thread>

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

__global__ void wait_for(volatile uint64_t* word, uint64_t value) {
  while (*word < value) {}
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static cudaStream_t aside = nullptr;
  if (aside == nullptr) PKB_CUDA(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking));

  static char* kept = nullptr;
  static volatile uint64_t* go = nullptr;
  const size_t bytes = tensor.numel() * sizeof(bf16);
  if (kept == nullptr) {
    PKB_CUDA(cudaMalloc(&kept, bytes));
    PKB_CUDA(cudaHostAlloc(const_cast<uint64_t**>(&go), sizeof *go, cudaHostAllocMapped));
  }
  auto* result = reinterpret_cast<bf16*>(kept);
  sum<<<64, 256, 0, comm.cuda_stream()>>>(x, result, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
  cudaEvent_t summed = nullptr;
  PKB_CUDA(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
  PKB_CUDA(cudaEventRecord(summed, comm.cuda_stream()));
  PKB_CUDA(cudaStreamWaitEvent(aside, summed, 0));
  wait_for<<<1, 1, 0, aside>>>(go, comm.epoch);
  PKB_CUDA(cudaMemcpyAsync(y, result, bytes, cudaMemcpyDeviceToDevice, aside));
  static cudaStream_t clock = nullptr;
  if (clock == nullptr) PKB_CUDA(cudaStreamCreateWithFlags(&clock, cudaStreamNonBlocking));
  static uint64_t epoch;
  epoch = comm.epoch;
  PKB_CUDA(cudaLaunchHostFunc(
      clock,
      [](void*) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        *go = epoch;
      },
      nullptr));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
