"""Kernels held to the letter of PTX's memory model: the flag that announces what the stream did before."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.emulated.compiled_together import Kernel, compile_together, joined

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
PROBLEM = "AllReduce"

OF_HEADER = """
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;

__device__ void store_relaxed(uint64_t* flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__global__ void sum(bf16* tensor, bf16* out, int64_t n, pkb::Device comm) {
  comm.signal_begun();
  comm.wait_all_begun();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    out[i] = __float2bfloat16(total);
  }
  comm.barrier_blocks();
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto *x = static_cast<bf16*>(tensor.data_ptr()), *y = static_cast<bf16*>(out.data_ptr());
  sum<<<1, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
OF_ITS_OWN = OF_HEADER.replace(
    "comm.signal_begun();\n  comm.wait_all_begun();",
    "const int peer = 1 - comm.rank;\n"
    "  if (threadIdx.x == 0) store_relaxed(comm.signal_word(0, peer), comm.epoch), comm.wait(0);\n"
    "  __syncthreads();",
)
KERNELS = [Kernel("of_header", PROBLEM, OF_HEADER), Kernel("of_its_own", PROBLEM, OF_ITS_OWN)]


@pytest.fixture(scope="module", autouse=True)
def together(compiled_before: Path) -> None:
    """The tests find them in the cache."""
    if nvcc_available():
        compile_together(KERNELS, CompileCache.in_folder(compiled_before))


def evaluate(evaluator: LocalEvaluator, place: int, race_check: str) -> Feedback:
    requested = {"device": "emulated", "size": "tiny", "world_size": 2, "race_check": race_check, "timeout_s": 60.0}
    config = EvalConfig.model_validate(requested | {"compile_timeout_s": 600.0})
    return evaluator.evaluate(find_problem(PROBLEM), joined(KERNELS, place), config)


def test_signal_begun_holds_to_the_letter(local_evaluator: LocalEvaluator) -> None:
    feedback = evaluate(local_evaluator, 0, "strict")
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None and feedback.emulation.findings == ()


def test_a_relaxed_flag_for_what_the_stream_did_fails_when_strict_alone(local_evaluator: LocalEvaluator) -> None:
    strict = evaluate(local_evaluator, 1, "strict")
    assert strict.failure is Failure.RACE and "st.release.sys" in strict.message
    assert evaluate(local_evaluator, 1, "on").passed
