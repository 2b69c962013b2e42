"""No reduction can be screened: what is left out, or done coarsely, does not pass for right.

`make test` screens a sample of the problems, `make all` and `make mutants` every one.
"""

from __future__ import annotations

import os

import pytest

from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import refused
from tests.problems.screening import SCREENINGS, WHOLE, screened
from tests.problems.support import Job, Run, run_jobs, same
from tests.whole_tables import sampled

BY_MAKE_MUTANTS = bool(os.environ.get("PKB_TEST_MUTANTS"))
TRIALS = ((1, False), (0, True)) if BY_MAKE_MUTANTS else ((0, True),)
"""Number of the trial, and whether it serves timing; checked ones too by `make mutants`."""

PROBLEMS = catalogue() if BY_MAKE_MUTANTS else sampled(catalogue(), 8, 3)
TRIED = [(problem, *trial) for problem in PROBLEMS for trial in TRIALS]

WITH_REDUCTION = 60
"""Problems with a sum or product of rounded numbers; the others move data, sort, or compute element by element."""

LOW_PRECISION_PASSES = {
    **dict.fromkeys(
        ("FusedMoE", "FusedMoELoRA", "MoEBalanced", "MoENarrow", "MoEWide"),
        "several roundings to bfloat16 between tokens and results",
    ),
    **dict.fromkeys(
        ("KimiDeltaAttention", "GatedDeltaNetCP"), "states of many tokens, whose products are rounded to bfloat16"
    ),
    "Conv3dAllReduce": "a sum of hundreds of products, each rank's rounded to bfloat16",
    "Conv2dBoundaryExchange": "weights alone are screened, in rows with a scale each",
    "SinkhornKnopp": "the scores' errors average out in the sums that they are divided by",
    "VocabParallelCrossEntropy": "8 bits for a sum of exponentials, which the definition rounds to bfloat16",
    "LoadBalancingLoss": "means of probabilities, whose errors average out",
}
"""Problem -> why eight bits for all but the largest may pass; all of it is read."""


def is_unchanged(one: Run, other: Run) -> bool:
    """Whether two runs have the same outputs."""
    return all(
        mine[leaf].shape == value.shape and same(mine[leaf], value)
        for mine, its in zip(one.outputs, other.outputs, strict=True)
        for leaf, value in its.items()
    )


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Run]]:
    """Runs of the reference, of it under a screening that leaves out nothing, and of each screening, one a problem and
    trial."""
    kinds = {"reference": None, "nothing": WHOLE} | SCREENINGS
    jobs = [
        Job(
            problem.name,
            world_size=2,
            trial=trial,
            timed=timed,
            solution=None if screening is None else screened(problem, screening),
        )
        for problem, trial, timed in TRIED
        for screening in kinds.values()
    ]
    found = run_jobs(jobs, 300)
    return {kind: found[number :: len(kinds)] for number, kind in enumerate(kinds)}


@pytest.mark.parametrize("name", SCREENINGS)
def test_screened_reductions_are_refused(name: str, runs: dict[str, list[Run]]) -> None:
    changed, passing = set(), set()
    for tried, truth, whole, got in zip(TRIED, runs["reference"], runs["nothing"], runs[name], strict=True):
        assert not refused(truth, whole), tried
        if not is_unchanged(whole, got):
            changed.add(truth.problem.name)
            if not refused(truth, got):
                passing.add(truth.problem.name)
    if name == "low precision":
        assert passing <= set(LOW_PRECISION_PASSES)
    else:
        assert not passing
    if name == "three quarters of the channels":
        assert len(changed) == WITH_REDUCTION if len(PROBLEMS) == len(catalogue()) else changed
