"""Right answers, a little changed: every problem's check must refuse them.

Coarser mistakes are in `tests/engine/test_checks_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pkb_gym.problems.catalogue import catalogue
from tests.problems.support import Job, Run, run_jobs, same

Leaves = list[dict[str, torch.Tensor]]
TRIALS = range(3)


def changed(outputs: Leaves, change: Callable[[torch.Tensor], torch.Tensor]) -> Leaves:
    return [
        {leaf: change(value.clone(memory_format=torch.contiguous_format)) for leaf, value in rank.items()}
        for rank in outputs
    ]


def next_ranks_output(runs: list[Run], trial: int) -> Leaves:
    outputs = runs[trial].outputs
    other = outputs[1:] + outputs[:1]
    return [
        {leaf: o[leaf] if leaf in o and o[leaf].shape == value.shape else value for leaf, value in rank.items()}
        for o, rank in zip(other, outputs, strict=True)
    ]


def scaled(runs: list[Run], trial: int) -> Leaves:
    return changed(runs[trial].outputs, lambda v: (v.double() * 1.02).to(v.dtype) if v.is_floating_point() else v)


def last_quarter_dropped(runs: list[Run], trial: int) -> Leaves:
    def change(value: torch.Tensor) -> torch.Tensor:
        flat = value.view(-1)
        flat[flat.numel() - -(-flat.numel() // 4) :] = 0
        return value

    return changed(runs[trial].outputs, change)


def rows_swapped(runs: list[Run], trial: int) -> Leaves:
    return changed(runs[trial].outputs, lambda v: v.roll(1, 0) if v.dim() and v.shape[0] > 1 else v)


MISSES = (
    next_ranks_output,
    scaled,
    last_quarter_dropped,
    rows_swapped,
)


def is_refused(run: Run, outputs: Leaves) -> bool:
    every = ((rank, leaf, value) for rank, leaves in enumerate(outputs) for leaf, value in leaves.items())
    return any(bool(run.wrong(rank, leaf, value).any()) for rank, leaf, value in every)


def is_the_same(run: Run, outputs: Leaves) -> bool:
    """A change that changes nothing: an output of one row, zeros where zeros are right, moved data alone."""
    pairs = [(run.outputs[rank][leaf], value) for rank, leaves in enumerate(outputs) for leaf, value in leaves.items()]
    return all(same(truth, value) for truth, value in pairs)


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_near_misses_are_refused(problem):
    runs = run_jobs([Job(problem.name, world_size=2, trial=trial) for trial in TRIALS])
    for run in runs:
        run.assert_passes_own_checks()
    for miss in MISSES:
        verdicts = []
        for trial in TRIALS:
            outputs = miss(runs, trial)
            if not is_the_same(runs[trial], outputs):
                verdicts.append(is_refused(runs[trial], outputs))
        # Ranks may rightly hold the same, and sizes may be so small that a change leaves a trial as it was.
        assert all(verdicts), f"{problem.name}: {miss.__name__} passes in {verdicts.count(False)} of {len(verdicts)}"
