// expect: runtime_error|output_mismatch|race|integrity rank
// Each rank maps its peer's own buffer once, by an IPC handle, and from then on takes what the peer kept there before.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__global__ void add(const bf16* one, const bf16* other, bf16* out, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    out[i] = __float2bfloat16(__bfloat162float(one[i]) + __bfloat162float(other[i]));
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  static bf16 *own = nullptr, *of_peer = nullptr;
  const int64_t n = tensor.numel();
  const int other = (comm.rank + 1) % comm.world_size;
  auto* handles = comm.scratch<cudaIpcMemHandle_t>();
  if (own == nullptr) {
    PKB_CUDA(cudaMalloc(&own, n * sizeof(bf16)));
    cudaIpcMemHandle_t handle;
    PKB_CUDA(cudaIpcGetMemHandle(&handle, own));
    PKB_CUDA(cudaMemcpyAsync(handles, &handle, sizeof handle, cudaMemcpyHostToDevice, comm.cuda_stream()));
    comm.barrier();
    PKB_CUDA(cudaMemcpyAsync(&handle, comm.peer(handles, other), sizeof handle, cudaMemcpyDeviceToHost,
                             comm.cuda_stream()));
    PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
    PKB_CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&of_peer), handle, cudaIpcMemLazyEnablePeerAccess));
  }
  add<<<64, 256, 0, comm.cuda_stream()>>>(x, of_peer, y, n);
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaMemcpyAsync(own, x, n * sizeof(bf16), cudaMemcpyDeviceToDevice, comm.cuda_stream()));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
