# expect: passed
# compile_timeout_s: 180
# NCCL gathers, and a kernel that load_inline built when the module was imported adds up.
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

CUDA_SRC = r"""
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>

__global__ void sum_slices(const __nv_bfloat16* slices, __nv_bfloat16* out, int64_t n, int64_t count) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += step) {
    float total = 0;
    for (int64_t slice = 0; slice < count; ++slice) total += __bfloat162float(slices[slice * n + i]);
    out[i] = __float2bfloat16(total);
  }
}

torch::Tensor sum_of_slices(torch::Tensor slices) {
  auto out = torch::empty_like(slices[0]);
  sum_slices<<<128, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const __nv_bfloat16*>(slices.data_ptr()), reinterpret_cast<__nv_bfloat16*>(out.data_ptr()),
      out.numel(), slices.size(0));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
CPP_SRC = "torch::Tensor sum_of_slices(torch::Tensor slices);"

ext = load_inline(
    name="sum_of_slices", cpp_sources=CPP_SRC, cuda_sources=CUDA_SRC, functions=["sum_of_slices"], verbose=False
)


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    slices = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather_into_tensor(slices, tensor)
    return ext.sum_of_slices(slices)
