"""Results in memory of a kernel's own, or in place: who has written them, and whether they are still there."""

from __future__ import annotations

import re

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.starters.native import naive_source

PROBLEM = find_problem("UlyssesAllGatherVariable")
FIND = """
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "pkb/symm.h"

// Where this process has the bytes of a new allocation, by a search of its anonymous memory.
char* find(char* allocation) {
  constexpr int kMark = 0xa7;
  constexpr size_t kMarked = 4096;
  char* marked;
  PKB_CUDA(cudaMalloc(&marked, kMarked));
  PKB_CUDA(cudaMemset(marked, kMark, kMarked));
  PKB_CUDA(cudaDeviceSynchronize());
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[512], mode[8];
  unsigned long begin, end, inode;
  while (std::fgets(line, sizeof line, maps)) {
    std::sscanf(line, "%lx-%lx %4s %*s %*s %lu", &begin, &end, mode, &inode);
    if (std::strcmp(mode, "rw-p") || inode || std::strchr(line, '[') || end - begin > (1ul << 30)) continue;
    for (char* page = reinterpret_cast<char*>(begin); page < reinterpret_cast<char*>(end); page += kMarked) {
      if (*page == char(kMark) && std::memcmp(page, page + 1, kMarked - 1) == 0) return allocation + (page - marked);
    }
  }
  throw std::runtime_error("found nothing");
}
"""
SOURCE = """
#include <vector>

#include "pkb/symm.h"

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

struct Memory {
  void AllocData(DLTensor* tensor) {
    PKB_CUDA(cudaMalloc(&tensor->data, tvm::ffi::GetDataSize(*tensor)));
  }
  void FreeData(DLTensor* tensor) { cudaFree(tensor->data); }
};

Tensor solution(TensorView x, int64_t gather_dim, int64_t group, pkb::Comm comm) {
  const auto tensor = Tensor::FromNDAlloc(Memory(), x.shape(), x.dtype(), x.device());
  const size_t bytes = tvm::ffi::GetDataSize(size_t(x.numel()), x.dtype());
  if (x.dtype().bits == 32) {  // by a copy of the GPU's
    PKB_CUDA(cudaMemcpyAsync(tensor.data_ptr(), x.data_ptr(), bytes, cudaMemcpyDefault, comm.cuda_stream()));
  } else if (x.dtype().code == kDLFloat) {  // by the host, past the GPU
    auto* const to = find(static_cast<char*>(tensor.data_ptr()));
    std::vector<char> content(bytes);
    PKB_CUDA(cudaMemcpyAsync(content.data(), x.data_ptr(), bytes, cudaMemcpyDefault, comm.cuda_stream()));
    for (size_t i = 0; i < bytes; ++i) to[i] = content[i];
  } else {  // memory that is freed
    PKB_CUDA(cudaFree(tensor.data_ptr()));
  }
  return tensor;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
CLIP = find_problem("ClipGradNorm")
SCALE_BY_HOST = """
  float found;
  PKB_CUDA(cudaMemcpyAsync(&found, norm, sizeof found, cudaMemcpyDefault, stream));
  PKB_CUDA(cudaStreamSynchronize(stream));
  for_each([&](auto* x, int64_t n) {
    auto* const own = reinterpret_cast<decltype(x)>(find(reinterpret_cast<char*>(x)));
    for (int64_t i = 0; i < n && found > most; ++i) own[i] = std::decay_t<decltype(*x)>(float(own[i]) * most / found);
  });
"""


@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
@pytest.mark.timeout(1800)  # the first compiles the emulator
@pytest.mark.parametrize(
    ("dtype", "verdict", "message"),
    [
        ("float32", None, ""),
        ("float16", "integrity", "returned tensor 0 of rank 0, byte 0: no kernel, copy or fill of an emulated GPU"),
        ("bfloat16", "runtime_error", "are no memory of a GPU"),
    ],
)
def test_who_has_written_a_returned_tensor(
    local_evaluator: LocalEvaluator, dtype: str, verdict: str | None, message: str
) -> None:
    config = EvalConfig(device="emulated", world_size=1, size="tiny", dtype=dtype, race_check="off", timeout_s=60.0)
    feedback = local_evaluator.evaluate(PROBLEM, FIND + SOURCE, config)
    assert feedback.failure == verdict, feedback.message
    assert message in feedback.message


@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
@pytest.mark.timeout(1800)
def test_who_has_written_an_argument_that_is_a_result(local_evaluator: LocalEvaluator) -> None:
    """Outputs alone were looked at: gradients that host code had scaled were right."""
    naive = naive_source(CLIP, "cuda")
    assert naive is not None
    begin = naive.rindex("  for_each(")
    end = naive.index("  comm.barrier()", begin)
    source = FIND + naive[:begin] + SCALE_BY_HOST + naive[end:]
    config = EvalConfig(device="emulated", world_size=1, size="tiny", race_check="off", timeout_s=60.0)
    feedback = local_evaluator.evaluate(CLIP, source, config)
    assert feedback.failure == "integrity", feedback.message
    assert re.search(r"output grad_tensors\[\d\] of rank 0, byte \d+: no kernel, copy or fill", feedback.message)
