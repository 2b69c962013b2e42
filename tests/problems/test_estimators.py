"""Small outputs cannot be had from statistics of the inputs, nor from part of them: checked and timed inputs alike.

ContrastiveLoss was once met, at size published, by the mean of the texts and a variance; LoadBalancingLoss by half of
its tokens; a norm by every second element.
"""

from __future__ import annotations

import pytest

from tests.problems.counterfeit_runs import refused
from tests.problems.estimators import ESTIMATORS
from tests.problems.support import Job, find_problem, run_jobs

TRIALS = ((0, False), (1, False), (3, False), (0, True), (1, True))
"""Number of the trial, and whether it serves timing."""

SMALLER = {"ImportanceSamplingLoss": {"T": 64, "H": 256}}
"""Axes of the published size replaced, where it takes too long."""


@pytest.mark.parametrize("problem", sorted({each.problem for each in ESTIMATORS}))
@pytest.mark.parametrize(("size", "world_size"), [("tiny", 4), ("published", 2)])
def test_estimators_are_refused(problem: str, size: str, world_size: int) -> None:
    solutions = [None, *(each.solution for each in ESTIMATORS if each.problem == problem)]
    names = ["reference", *(each.name for each in ESTIMATORS if each.problem == problem)]
    axes = find_problem(problem).base_axes(size) | SMALLER.get(problem, {}) if size == "published" else size
    jobs = [
        Job(problem, size=axes, world_size=world_size, trial=trial, timed=timed, solution=solution)
        for solution in solutions
        for trial, timed in TRIALS
    ]
    runs = run_jobs(jobs)
    truths = runs[: len(TRIALS)]
    for number, name in enumerate(names):
        verdicts = [refused(truth, got) for truth, got in zip(truths, runs[number * len(TRIALS) :], strict=False)]
        # Timed calls, of which a verdict compares hundreds, refuse too.
        assert not any(verdicts) if name == "reference" else any(verdicts[:3]) and any(verdicts[3:]), (name, verdicts)
