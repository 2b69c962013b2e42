// expect: race|integrity|output_mismatch rank
// A graph whose pointers are updated for each call, launched with those of the call before.
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

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static cudaGraphExec_t replay = nullptr;
  static cudaGraphNode_t node = nullptr;
  static pkb::Device device;
  static int64_t n = 0;
  static void* arguments[] = {nullptr, nullptr, &n, &device};
  static bf16 *before_x = nullptr, *before_y = nullptr;
  device = comm.device();
  n = tensor.numel();
  if (before_x == nullptr) before_x = x, before_y = y;
  arguments[0] = &before_x;
  arguments[1] = &before_y;
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(sum);
  kernel.gridDim = dim3(64);
  kernel.blockDim = dim3(256);
  kernel.kernelParams = arguments;
  if (replay == nullptr) {
    cudaGraph_t graph = nullptr;
    PKB_CUDA(cudaGraphCreate(&graph, 0));
    PKB_CUDA(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
    PKB_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  }
  PKB_CUDA(cudaGraphExecKernelNodeSetParams(replay, node, &kernel));
  PKB_CUDA(cudaGraphLaunch(replay, comm.cuda_stream()));
  before_x = x;
  before_y = y;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
