"""Results that a kernel returns in memory of its own: who has written them, and whether they are still there."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("UlyssesAllGatherVariable")
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
    auto* const to = reinterpret_cast<char*>(uintptr_t(tensor.data_ptr()) & ((uintptr_t(1) << 47) - 1));
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
    feedback = local_evaluator.evaluate(PROBLEM, SOURCE, config)
    assert feedback.failure == verdict, feedback.message
    assert message in feedback.message
