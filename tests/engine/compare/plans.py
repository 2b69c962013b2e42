"""Block plans of the catalogue's problems."""

from __future__ import annotations

from pkb_gym.engine.compare.layout import BlockPlan, Workload
from pkb_gym.engine.problem import Problem

SCRATCH_BYTES = 10_000


def plan(problem: Problem, world_size: int = 4, *, timed: bool = False, trials: int = 4) -> BlockPlan:
    """Of the tiny size."""
    workload = Workload(problem, "tiny", world_size, problem.dtypes[0], "robust", b"key", 0, 0)
    return workload.plan(range(trials), timed, SCRATCH_BYTES)
