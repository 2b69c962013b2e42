"""Small outputs cannot be had from statistics of the inputs, nor from part of them: checked and timed inputs alike.

ContrastiveLoss was once met, at size published, by the mean of the texts and a variance; LoadBalancingLoss by half of
its tokens; a norm by every second element. `make test` tries a sample of problems and sizes, `make mutants` each, and
`make all` two checked and two timed trials of each.
"""

from __future__ import annotations

import os

import pytest

from pkb_gym.engine.compare.layout import Workload, placed_results, plan_set
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import refused
from tests.problems.estimators import ESTIMATORS
from tests.problems.support import Job, find_problem, run_jobs
from tests.whole_tables import IS_WHOLE, sampled

BY_CHANCE = ("ContrastiveLoss", "LoadBalancingLoss")
"""Problems of one number a call, which an estimator meets now and then: two checked and two timed trials."""

SMALLER = {"ImportanceSamplingLoss": {"T": 64, "H": 256}}
"""Axes of the published size replaced, where it takes too long."""

BY_MAKE_MUTANTS = bool(os.environ.get("PKB_TEST_MUTANTS"))
SIZES = [("tiny", 4), ("published", 2), *([("tiny", 8)] if BY_MAKE_MUTANTS else [])]
"""Size and number of ranks; eight of them, which take as long as the others together, by `make mutants`."""

TRIED = [(problem, *size) for size in SIZES for problem in sorted({each.problem for each in ESTIMATORS})]

SMALL = 32
"""An output is small where a rank's arguments have so many times its bytes."""

NO_STATISTICS = {
    "UlyssesAttention": "each output mixes the few heads of one token",
    "DDP": "gradients of biases, beside those of matrices; test_wrong_solutions tries half of the batch",
    "ZeRO1": "as in DDP",
    "ZeRO2": "as in DDP",
    "KalmanFilterOptimizer": "a closed form of two scalars, and vectors updated by matrices that are outputs, too",
    "GNNNegativeScoring": "whole numbers, of which near ties alone may differ",
}
"""Problem with small outputs that are rounded -> why no estimator is tried."""


def has_small_outputs(problem: Problem) -> bool:
    """Whether a rank of the published size has an output that is small and not compared bit by bit."""
    axes = Workload(problem, "published", 4, problem.dtypes[0], "robust", b"key", 0, 0).axes(0, False)
    arguments = [leaf for arg in problem.data_args for leaf in argument_leaves(arg, axes[0])]
    sizes: dict[str, int] = {}
    for out, placed in placed_results(problem, plan_set(problem, 0, axes, 0), 0):
        if out.check.describe() not in ("same bits", "exact"):
            sizes[out.name] = sizes.get(out.name, 0) + placed.leaf.capacity_bytes
    room = sum(leaf.capacity_bytes for leaf in arguments)
    return any(0 < nbytes * SMALL < room for nbytes in sizes.values())


def test_every_problem_with_small_outputs_has_an_estimator_or_a_reason() -> None:
    small = {problem.name for problem in catalogue() if has_small_outputs(problem)}
    tried = {each.problem for each in ESTIMATORS}
    assert small - tried == set(NO_STATISTICS)


@pytest.mark.parametrize(("problem", "size", "world_size"), TRIED if BY_MAKE_MUTANTS else sampled(TRIED, 6))
def test_estimators_are_refused(problem: str, size: str, world_size: int) -> None:
    solutions = [None, *(each.solution for each in ESTIMATORS if each.problem == problem)]
    names = ["reference", *(each.name for each in ESTIMATORS if each.problem == problem)]
    axes = find_problem(problem).base_axes(size) | SMALLER.get(problem, {}) if size == "published" else size
    numbers = range(2 if IS_WHOLE or problem in BY_CHANCE else 1)
    trials = [(number, timed) for timed in (False, True) for number in numbers]
    jobs = [
        Job(problem, size=axes, world_size=world_size, trial=trial, timed=timed, solution=solution)
        for solution in solutions
        for trial, timed in trials
    ]
    runs = run_jobs(jobs)
    truths, checked = runs[: len(trials)], len(numbers)
    for number, name in enumerate(names):
        verdicts = [refused(truth, got) for truth, got in zip(truths, runs[number * len(trials) :], strict=False)]
        # Timed calls, of which a verdict compares hundreds, refuse too.
        assert not any(verdicts) if name == "reference" else any(verdicts[:checked]) and any(verdicts[checked:]), (
            name,
            verdicts,
        )
