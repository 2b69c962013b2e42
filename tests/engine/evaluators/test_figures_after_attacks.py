"""Attacks on the timing leave nothing behind: a good kernel has the speedup that it had before them."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.ranks.sandbox import bubblewrap_works
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import find_problem
from tests.engine.attacks import FAMILIES, members
from tests.engine.candidates import FOLDER, Candidate, read

GOOD = read(FOLDER / "good" / "reads_peers.cpp")
AIMS = ("run while frozen", "be timed under better conditions", "exhaust the machine", "give an earlier answer")
BAD = [each for family in FAMILIES if family.aim in AIMS for each in members(family, on_gpus=False)]
LARGEST_RATIO = 1.3
ATTEMPTS = 5
"""Before the attacks, and at most after them. Other programs disturb a figure now and then; what an attack has left
disturbs each."""


def speedup(evaluator: LocalEvaluator) -> float:
    """Of the good kernel."""
    config = GOOD.config.model_copy(update={"until": "time", "timing_budget_s": 0.3})
    feedback = evaluator.evaluate(find_problem(GOOD.problem), GOOD.source, config)
    GOOD.assert_as_expected(feedback)
    assert feedback.timing is not None
    return feedback.timing.speedup


def needs_what_is_missing(candidate: Candidate) -> bool:
    return candidate.options.get("needs") == "bubblewrap" and not bubblewrap_works()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_good_kernel_has_the_figures_that_it_had(local_evaluator: LocalEvaluator) -> None:
    before = [speedup(local_evaluator) for _ in range(ATTEMPTS)]
    for candidate in BAD:
        if not needs_what_is_missing(candidate):
            feedback = local_evaluator.evaluate(find_problem(candidate.problem), candidate.source, candidate.config)
            assert feedback.failure is not Failure.INFRASTRUCTURE, f"{candidate.name}: {feedback.message}"
    after = []
    while len(after) < ATTEMPTS:
        after.append(speedup(local_evaluator))
        if min(before) / LARGEST_RATIO < after[-1] < max(before) * LARGEST_RATIO:
            return
    pytest.fail(f"speedups of {before} before, and of {after} after {len(BAD)} attacks")
