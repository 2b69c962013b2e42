# expect: passed
# until: time
# compile_timeout_s: 300
# ParallelKittens without multicast: each rank adds up what it reads from its peers' parallel tensors, between barriers.
import torch
import torch.distributed as dist
from utils.cuda_helpers import compile_cuda_extension
from utils.parallelkittens_runtime import get_or_create_barrier, get_or_create_parallel_tensor

BLOCKS = 64
CUDA_SRC = r"""
#include "kittens.cuh"
#include "pyutils/torchutils.cuh"

using namespace kittens;

namespace all_reduce {

constexpr int NUM_DEVICES = 2;

struct config {
  static constexpr int CLUSTER_SIZE = 1;
  static constexpr int MIN_BLOCKS_PER_SM = 1;
  static constexpr int NUM_BLOCKS = 64;
  static constexpr int NUM_THREADS = 256;
  static constexpr int DYNAMIC_SHARED_MEMORY = 0;
};

struct globals {
  using layout = pgl<gl<bf16, -1, -1, -1, -1>, NUM_DEVICES, false>;
  using counters = pgl<gl<int, -1, -1, -1, -1>, NUM_DEVICES, false>;
  layout tensor;
  counters barrier;
  bf16* out;
  const int64_t numel;
  const int arrivals;  // that each counter had before this call
  const int dev_idx;
};

// Block b of every rank meets; the counters only grow, so that a fast rank may already be at the next barrier.
__device__ inline void meet(const globals& G, int phase) {
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int dev = 0; dev < NUM_DEVICES; ++dev) {
      asm volatile("red.release.sys.global.add.s32 [%0], 1;" ::"l"(G.barrier[dev].raw_ptr + blockIdx.x) : "memory");
    }
    int value;
    do {
      asm volatile("ld.acquire.sys.global.s32 %0, [%1];"
                   : "=r"(value) : "l"(G.barrier[G.dev_idx].raw_ptr + blockIdx.x) : "memory");
    } while (value < G.arrivals + phase * NUM_DEVICES);
  }
  __syncthreads();
}

__device__ inline void kernel(const globals& G) {
  meet(G, 1);  // every rank has filled its tensor
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < G.numel; i += step) {
    float total = 0;
    for (int dev = 0; dev < NUM_DEVICES; ++dev) total += __bfloat162float(G.tensor[dev].raw_ptr[i]);
    G.out[i] = __float2bfloat16(total);
  }
  meet(G, 2);  // every rank has read: the next call may fill the tensor
}

}  // namespace all_reduce

void entrypoint(kittens::py::TKParallelTensor& tensor, kittens::py::TKParallelTensor& barrier, const at::Tensor& out,
                int64_t calls) {
  using all_reduce::globals;
  globals G{.tensor = kittens::py::parallel_tensor_to_pgl<globals::layout>(tensor),
            .barrier = kittens::py::parallel_tensor_to_pgl<globals::counters>(barrier),
            .out = reinterpret_cast<bf16*>(out.data_ptr()),
            .numel = out.numel(),
            .arrivals = static_cast<int>(calls * 2 * all_reduce::NUM_DEVICES),
            .dev_idx = tensor.local_rank_};
  kittens::py::launch_kernel<all_reduce::config, globals, all_reduce::kernel>(G);
}

#include <torch/csrc/utils/pybind.h>

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  BIND_TK_PARALLEL_TENSOR(m);
  m.def("tk_all_reduce", &entrypoint);
}
"""

_ext = None
_calls = 0


def _get_ext():
    global _ext
    if _ext is None:
        _ext = compile_cuda_extension("parallelkittens_all_reduce", CUDA_SRC)
    return _ext


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    global _calls
    if _ext is None:
        if dist.get_rank() == 0:
            _get_ext()
        dist.barrier()
    shared = get_or_create_parallel_tensor(_get_ext(), tuple(tensor.shape), tensor.dtype, multicast=False)
    barrier = get_or_create_barrier(_get_ext(), shape=(1, BLOCKS), multicast=False)
    out = torch.empty_like(tensor)
    shared.data_.copy_(tensor)
    _get_ext().tk_all_reduce(shared, barrier, out, _calls)
    _calls += 1
    return out
