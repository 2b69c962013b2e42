"""Honest kernels of many ways to synchronise, in candidates/cuda/styles: right, and the detector has no finding."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulator.joined import joined_config, joined_source

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
STYLES = candidates("cuda/styles")


@pytest.mark.parametrize("kernel", STYLES, ids=lambda kernel: kernel.path.stem)
def test_it_passes_without_a_finding(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    config = joined_config(STYLES.index(kernel) + 1, kernel, detect_races=True, timeout_s=60.0, compile_timeout_s=600.0)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), joined_source(STYLES), config)
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None and feedback.emulation.findings == ()
