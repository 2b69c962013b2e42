# expect: passed
# problem: AllGather
# until: time
# compile_timeout_s: 300
# ParallelKittens without multicast: each rank stores its block into every peer's parallel tensor, between two kernels
# that are barriers. Its extension does not bind TKParallelTensor, which is then the runtime's.
import torch
from utils.cuda_helpers import compile_cuda_extension
from utils.parallelkittens_runtime import get_or_create_barrier, get_or_create_parallel_tensor

CUDA_SRC = r"""
#include "kittens.cuh"
#include "pyutils/torchutils.cuh"

using namespace kittens;

constexpr int NUM_DEVICES = 2;

namespace all_gather {

struct config {
  static constexpr int CLUSTER_SIZE = 1;
  static constexpr int MIN_BLOCKS_PER_SM = 1;
  static constexpr int NUM_THREADS = 256;
  static constexpr int DYNAMIC_SHARED_MEMORY = 0;
};

struct globals {
  using layout = pgl<gl<bf16, -1, -1, -1, -1>, NUM_DEVICES, false>;
  layout output;
  const bf16* input;
  const int64_t numel;
  const int dev_idx;
  __host__ inline dim3 grid() const { return dim3(64, NUM_DEVICES); }
};

__device__ inline void kernel(const globals& G) {
  bf16* to = G.output[blockIdx.y].raw_ptr + G.dev_idx * G.numel;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < G.numel; i += step) to[i] = G.input[i];
}

}  // namespace all_gather

namespace all_gather_barrier {

struct config {
  static constexpr int CLUSTER_SIZE = 1;
  static constexpr int MIN_BLOCKS_PER_SM = 1;
  static constexpr int NUM_BLOCKS = 1;
  static constexpr int NUM_THREADS = 1;
  static constexpr int DYNAMIC_SHARED_MEMORY = 0;
};

struct globals {
  using counters = pgl<gl<int, -1, -1, -1, -1>, NUM_DEVICES, false>;
  counters barrier;
  const int expected;
  const int dev_idx;
};

__device__ inline void kernel(const globals& G) {
  for (int dev = 0; dev < NUM_DEVICES; ++dev) {
    asm volatile("red.release.sys.global.add.s32 [%0], 1;" ::"l"(G.barrier[dev].raw_ptr) : "memory");
  }
  int value;
  do {
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(G.barrier[G.dev_idx].raw_ptr) : "memory");
  } while (value < G.expected);
}

}  // namespace all_gather_barrier

void entrypoint(kittens::py::TKParallelTensor& output, const at::Tensor& input, kittens::py::TKParallelTensor& barrier,
                int64_t calls) {
  using namespace kittens::py;
  all_gather::globals gather_G{.output = parallel_tensor_to_pgl<all_gather::globals::layout>(output),
                               .input = reinterpret_cast<const bf16*>(input.data_ptr()),
                               .numel = input.numel(),
                               .dev_idx = output.local_rank_};
  auto meet = [&](int64_t meetings) {
    all_gather_barrier::globals G{.barrier = parallel_tensor_to_pgl<all_gather_barrier::globals::counters>(barrier),
                                  .expected = static_cast<int>(meetings * NUM_DEVICES),
                                  .dev_idx = barrier.local_rank_};
    launch_kernel<all_gather_barrier::config, all_gather_barrier::globals, all_gather_barrier::kernel>(G);
  };
  meet(2 * calls + 1);  // every rank has begun its call: what its tensor held is taken
  launch_kernel<all_gather::config, all_gather::globals, all_gather::kernel>(gather_G);
  meet(2 * calls + 2);  // every block has come
}

#include <torch/csrc/utils/pybind.h>

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("tk_all_gather", &entrypoint); }
"""

ext = compile_cuda_extension("parallelkittens_all_gather", CUDA_SRC)
_calls = 0


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    global _calls
    output = get_or_create_parallel_tensor("output", (2, *tensor.shape), tensor.dtype)
    barrier = get_or_create_barrier("barrier", multicast=False)
    ext.tk_all_gather(output, tensor, barrier, _calls)
    _calls += 1
    return output.data_
