"""Kernels with NVSHMEM and NCCL's device API on emulated GPUs: right, and found wrong without what they need."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulated.compiled_together import Kernel, compile_together, joined

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
RIGHT = candidates("cuda/libraries")
NEEDED = {
    "nccl_all_gather_of_arguments": "  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all have stored\n",
    "nccl_all_reduce": "  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);\n",
    "nvshmem_all_gather_of_arguments": "  nvshmemx_barrier_all_block();  // all have begun\n",
    "nvshmem_all_reduce": "nvshmem_signal_wait_until(arrived + peer, NVSHMEM_CMP_GE, comm.epoch);",
}
"""Candidate -> text without which it is wrong."""
SAMPLE = ("nccl_all_reduce", "nvshmem_all_gather_of_arguments")


def broken(candidate: Candidate) -> Candidate:
    """The kernel without what it needs."""
    needed = NEEDED[candidate.path.stem]
    assert candidate.source.count(needed) == 1
    source = candidate.source.replace(needed, ";" if needed.endswith(";") else "")
    return replace(candidate, source=source, path=candidate.path.with_name(f"broken_{candidate.path.name}"))


WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))
SHOWN = RIGHT if WHOLE else [candidate for candidate in RIGHT if candidate.path.stem in SAMPLE]
BROKEN = [broken(candidate) for candidate in RIGHT if WHOLE or candidate not in SHOWN]
"""Those that run; all of them by `make emulated`."""
KERNELS = [Kernel(each.path.stem, each.problem, each.source) for each in (*SHOWN, *BROKEN)]


@pytest.fixture(scope="module", autouse=True)
def together(compiled_before: Path) -> None:
    """The tests find them in the cache."""
    if nvcc_available():
        compile_together(KERNELS, CompileCache.in_folder(compiled_before))


def evaluate(evaluator: LocalEvaluator, candidate: Candidate) -> Feedback:
    number = [*SHOWN, *BROKEN].index(candidate)
    config = EvalConfig(
        device="emulated", world_size=2, size="tiny", race_check="on", timeout_s=60.0, compile_timeout_s=600.0
    )
    return evaluator.evaluate(find_problem(candidate.problem), joined(KERNELS, number), config)


@pytest.mark.parametrize("candidate", SHOWN, ids=lambda candidate: candidate.path.stem)
def test_it_passes(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    feedback = evaluate(local_evaluator, candidate)
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None and not feedback.emulation.findings


@pytest.mark.parametrize("candidate", BROKEN, ids=lambda candidate: candidate.path.stem)
def test_without_what_it_needs_it_is_a_race(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    feedback = evaluate(local_evaluator, candidate)
    assert feedback.failure is Failure.RACE, feedback.message
