"""The race detector beside the GPUs there are: what they pass now and then is a race, and right kernels are timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, read
from tests.gpu.sharing import GOOD, need_gpus

RACY = read(FOLDER / "cuda" / "racy" / "copies_into_scratch_that_peers_gather.cu")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.skipif(not nvcc_available(), reason="needs nvcc")]


def evaluate(evaluator: LocalEvaluator, path: Path, size: str) -> Feedback:
    candidate = read(path)
    changes = {"race_check": "on", "size": size, "until": "time", "compile_timeout_s": 300.0}
    config = candidate.config.model_copy(update=changes)
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)


@pytest.mark.parametrize("size", ["tiny", "published"])
def test_a_missing_exit_synchronisation_is_a_race(
    local_evaluator: LocalEvaluator, emulator_is_built: None, size: str
) -> None:
    """GPUs show it where a rank is slow at the right moment alone."""
    need_gpus(2)
    feedback = evaluate(local_evaluator, RACY.path, size)
    assert feedback.failure is Failure.RACE and feedback.timing is None, feedback.message


def test_a_right_kernel_is_timed_beside_its_emulated_run(
    local_evaluator: LocalEvaluator, emulator_is_built: None
) -> None:
    need_gpus(2)
    feedback = evaluate(local_evaluator, GOOD.path, "published")
    assert feedback.passed and feedback.stage is Stage.TIME, feedback.message
    assert feedback.race_check is not None and feedback.race_check.verdict == "no_race", feedback.race_check
    assert feedback.emulation is not None and feedback.emulation.calls == 14
