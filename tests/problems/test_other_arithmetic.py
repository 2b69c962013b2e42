"""A right kernel may add in another order, round where the definition lets it, and take equal elements as they come.

`make test` takes a sample of the problems, `make all` every one. `python -m benchmarks.right_variants` judges more of
these variants, by whole evaluations.
"""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import refused
from tests.problems.other_runs import with_other_arithmetic
from tests.problems.support import Job, run_jobs
from tests.whole_tables import sampled

TRIALS = ((1, False), (2, False), (3, True))
"""Number of the trial, which is the seed too, and whether it serves timing."""

DIFFERENT = frozenset({"DDP", "GNNNegativeScoring", "MoEWide", "RingAttention", "UlyssesAttention"})
"""Problems whose variants have other bits."""


@pytest.mark.parametrize("problem", sampled(catalogue(), 8, 2), ids=lambda problem: problem.name)
def test_every_variant_is_accepted(problem: Problem) -> None:
    solutions = [None, *(with_other_arithmetic(problem, trial) for trial, _ in TRIALS)]
    jobs = [Job(problem.name, world_size=2, trial=trial, timed=timed) for trial, timed in TRIALS]
    jobs += [
        Job(problem.name, world_size=2, trial=trial, timed=timed, solution=solution)
        for (trial, timed), solution in zip(TRIALS, solutions[1:], strict=True)
    ]
    runs = run_jobs(jobs)
    pairs = list(zip(runs[: len(TRIALS)], runs[len(TRIALS) :], strict=True))
    assert [refused(truth, got) for truth, got in pairs] == [False] * len(TRIALS)
    if problem.name in DIFFERENT:
        same = [
            torch.equal(got.outputs[0][leaf], value) for truth, got in pairs for leaf, value in truth.outputs[0].items()
        ]
        assert not all(same)
