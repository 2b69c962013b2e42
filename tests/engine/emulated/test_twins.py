"""Kernels in the manner of shipped ones, each without one of its synchronisations, beside their right twins.

A few of each run by default, and all of them by `make emulated`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate
from tests.engine.emulated.compiled_together import compile_of_many
from tests.engine.emulated.joined import joined_config, joined_source
from tests.engine.twins import Twin, right_kernels, twins

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
RIGHT, WRONG = right_kernels("cuda/twins"), twins("cuda/twins")
QUICK = ("pull", "two_shot_in_scratch", "ll_words")
IS_WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))
SHOWN_RIGHT = [kernel for kernel in RIGHT if IS_WHOLE or kernel.path.stem in QUICK]
SHOWN_WRONG = [twin for twin in WRONG if IS_WHOLE or twin.right.path.stem in QUICK]
ALL = [*SHOWN_RIGHT, *(twin.wrong for twin in SHOWN_WRONG)]
"""Compiled together."""


@functools.cache
def source_of_all() -> str:
    """The source that they share."""
    return joined_source(ALL)


@pytest.fixture(scope="module", autouse=True)
def together(compiled_before: Path) -> None:
    """The tests find it in the cache."""
    if nvcc_available():
        compile_of_many(source_of_all(), CompileCache.in_folder(compiled_before))


def evaluate(evaluator: LocalEvaluator, kernel: Candidate, **requested: object) -> Feedback:
    config = joined_config(ALL.index(kernel) + 1, kernel, timeout_s=60.0, compile_timeout_s=600.0, **requested)
    return evaluator.evaluate(find_problem(kernel.problem), source_of_all(), config)


@pytest.mark.parametrize("kernel", SHOWN_RIGHT, ids=lambda kernel: kernel.path.stem)
def test_a_right_kernel_passes_without_a_finding(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    feedback = evaluate(local_evaluator, kernel, race_check="on")
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None
    assert [found for found in feedback.emulation.findings if found.finding_class != "benign"] == []


@pytest.mark.parametrize("twin", SHOWN_WRONG, ids=str)
def test_the_detector_finds_a_missing_synchronisation(local_evaluator: LocalEvaluator, twin: Twin) -> None:
    feedback = evaluate(local_evaluator, twin.wrong, race_check="on")
    assert feedback.failure in twin.outcome, feedback.message
    assert feedback.emulation is not None
    classes = {found.finding_class for found in feedback.emulation.findings}
    assert ("unsynchronised" in classes) == ("race" in twin.outcome), "words that carry their own flags are none"


@pytest.mark.parametrize("twin", SHOWN_WRONG, ids=str)
def test_schedules_alone_refuse_a_missing_synchronisation(local_evaluator: LocalEvaluator, twin: Twin) -> None:
    feedback = evaluate(local_evaluator, twin.wrong, race_check="off")
    assert feedback.failure in (Failure.DEADLOCK, Failure.RACE, Failure.OUTPUT_MISMATCH), feedback.message
