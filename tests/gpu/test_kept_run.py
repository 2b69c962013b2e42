"""CUDA sources under compute-sanitizer: in the evaluation, and as a kept run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pkb_gym.engine.debugging.debugger import DebugFolders
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BEHIND = """
#include "pkb/symm.h"
__global__ void behind(float* scratch) { scratch[1] = 1; }
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  float* own = nullptr;
  PKB_CUDA(cudaMalloc(&own, sizeof(float)));
  behind<<<1, 1, 0, comm.cuda_stream()>>>(own);
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@pytest.fixture(autouse=True)
def compute_sanitizer() -> None:
    if not shutil.which("compute-sanitizer") and not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("needs compute-sanitizer, of the CUDA toolkit")


def test_findings_are_in_the_feedback(local_evaluator: LocalEvaluator):
    config = EvalConfig(device="cuda", world_size=1, size="tiny", until="check", sanitize=("memcheck",))
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), BEHIND, config)
    assert feedback.failure == "runtime_error", feedback.message
    summaries = [report.summary for report in feedback.sanitizers if report.found]
    assert any("Invalid __global__ write of size 4 bytes" in one and "kernel.cu:3" in one for one in summaries)
    assert summaries[0] in feedback.message


def test_memcheck_names_the_line(tmp_path: Path):
    with LocalEvaluator(folders=DebugFolders(keep_to=tmp_path)) as evaluator:
        config = EvalConfig(device="cuda", world_size=1, size="tiny", until="check")
        evaluator.evaluate(find_problem("AllReduce"), BEHIND, config)
    ran = subprocess.run([tmp_path / "run.sh", "memcheck"], capture_output=True, text=True, timeout=250)
    assert ran.returncode == 86, ran.stdout + ran.stderr
    assert "Invalid __global__ write" in ran.stdout and "kernel.cu:3" in ran.stdout
