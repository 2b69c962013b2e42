"""Every file of tests/candidates/cuda: its own named failure, in time, and the next evaluation is none the worse."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.timing import Timing
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, Candidate, candidates, read
from tests.engine.compiling import compile_ahead

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]
GOOD = read(FOLDER / "cuda" / "good" / "reads_peers.cu")
IN_A_ROW = 100
SAME_RELATIVE = 0.1
"""Two evaluations of one kernel differ by less than this, whatever was evaluated between them."""


def need(candidate: Candidate) -> None:
    """Skips the test where this machine cannot run a candidate."""
    if len(gpus.names()) < candidate.world_size:
        pytest.skip(f"needs {candidate.world_size} NVIDIA GPUs")
    if "import triton" in candidate.source and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator) -> None:
    """All sources, compiled side by side ahead of the tests, which find them in the cache."""
    if gpus.names():
        work = [(find_problem(each.problem), each.source, each.config) for each in ALL]
        compile_ahead(local_evaluator, work, threads=16)


def evaluate(evaluator: LocalEvaluator, candidate: Candidate) -> Feedback:
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, candidate.config)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("candidate", ALL, ids=lambda candidate: candidate.name.removeprefix("cuda/"))
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    candidate.assert_as_expected(evaluate(local_evaluator, candidate))
    if candidate.kind == "hostile":
        GOOD.assert_as_expected(evaluate(local_evaluator, GOOD))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_in_a_row_change_no_figures(local_evaluator: LocalEvaluator) -> None:
    need(GOOD)
    before = figures(local_evaluator)
    bad = [
        candidate
        for candidate in (*candidates("cuda/hostile"), *candidates("cuda/broken"))
        if candidate.path.suffix == ".cu" and candidate.outcome != "compile_error"
    ]
    for candidate in itertools.islice(itertools.cycle(bad), IN_A_ROW):
        feedback = evaluate(local_evaluator, candidate)
        assert feedback.failure is not Failure.INFRASTRUCTURE, f"{candidate.name}: {feedback.message}"
    after = figures(local_evaluator)
    assert after.baseline_us == pytest.approx(before.baseline_us, rel=SAME_RELATIVE)
    assert after.candidate_us == pytest.approx(before.candidate_us, rel=SAME_RELATIVE)


def figures(evaluator: LocalEvaluator) -> Timing:
    """Times of the good kernel; at size large, as those of smaller baselines follow the hosts' launches."""
    config = GOOD.config.model_copy(update={"size": "large", "timing_budget_s": 3.0})
    feedback = evaluator.evaluate(find_problem(GOOD.problem), GOOD.source, config)
    GOOD.assert_as_expected(feedback)
    assert feedback.timing is not None
    return feedback.timing
