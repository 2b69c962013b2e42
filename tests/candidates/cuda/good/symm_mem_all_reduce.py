# expect: passed
# until: time
# compile_timeout_s: 180
# Inline CUDA over torch's symmetric memory, written as for the published benchmark: built by rank 0 at the first call.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

CUDA_SRC = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

__global__ void sum_buffers(const uint64_t* buffers, __nv_bfloat16* out, int64_t n, int world_size) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += step) {
    float total = 0;
    for (int r = 0; r < world_size; ++r) {
      total += __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(buffers[r])[i]);
    }
    out[i] = __float2bfloat16(total);
  }
}

void launch_sum(int64_t buffers, torch::Tensor out, int64_t world_size) {
  TORCH_CHECK(out.is_cuda() && out.is_contiguous() && out.scalar_type() == torch::kBFloat16);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  sum_buffers<<<256, 256, 0, stream>>>(reinterpret_cast<const uint64_t*>(buffers),
                                       reinterpret_cast<__nv_bfloat16*>(out.data_ptr()), out.numel(),
                                       static_cast<int>(world_size));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch_sum", &launch_sum); }
"""

_ext = None
_buffers = {}


def _get_ext():
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("symm_mem_all_reduce", CUDA_SRC)
    return _ext


def _get_buffer(shape, dtype, device):
    key = (tuple(shape), dtype)
    if key not in _buffers:
        buffer = symm_mem.empty(shape, dtype=dtype, device=device)
        _buffers[key] = buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
    return _buffers[key]


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    if _ext is None:
        if dist.get_rank() == 0:
            _get_ext()
        dist.barrier()
    buffer, handle = _get_buffer(tensor.shape, tensor.dtype, tensor.device)
    out = torch.empty_like(tensor)
    buffer.copy_(tensor)
    handle.barrier(channel=0)
    _get_ext().launch_sum(handle.buffer_ptrs_dev, out, handle.world_size)
    handle.barrier(channel=1)  # nobody overwrites a buffer that a peer still reads
    return out
