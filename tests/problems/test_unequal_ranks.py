"""Ranks whose own share is the timed one cannot infer the others' from it, whatever else they look at."""

from __future__ import annotations

from typing import Any

import pytest

from pkb_gym.authoring import wrong_collectives
from tests.problems.counterfeit_runs import refused
from tests.problems.support import Job, find_problem, make_axes, run_each

OWN = {
    "GaussianSplatting": "n",
    "DistributedKNN": "Q",
    "KalmanFilterOptimizer": "blocks",
    "GNNNegativeScoring": "P_r",
    "SampleSort": "n",
}
"""Problem -> a rank's own axis, of which nothing is drawn where ranks are timed."""

SCALARS = {
    "GaussianSplatting": ("C", "D", "width", "height", "eps2d", "near_plane", "far_plane"),
    "DistributedKNN": ("k", "F", "n", "group"),
    "KalmanFilterOptimizer": ("kalman_lambda", "kalman_nue", "skew"),
    "GNNNegativeScoring": ("K", "group", "special"),
    "SampleSort": ("group",),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("trial", [0, 4])
def test_some_ranks_hold_what_they_hold_in_timing_and_others_do_not(name: str, trial: int) -> None:
    problem, own = find_problem(name), OWN[name]
    timed, checked = (make_axes(problem, world_size=4, trial=trial, timed=timed) for timed in (True, False))
    as_timed = [ax for ax, other in zip(checked, timed, strict=True) if ax[own] == other[own]]
    assert 2 <= len(as_timed) < 4
    for axis in SCALARS[name]:
        assert {ax[axis] for ax in as_timed} == {timed[0][axis]}


def assumes_equal_numbers(*args: Any) -> object:
    """The reference with its own numbers in place of the other ranks', of its first collective."""
    from pkb_gym.problems.geometric_spatial.gaussian_splatting.reference import solution

    with wrong_collectives.replaced(lambda number, _: number == 0, others=True):
        return solution(*args)


def test_numbers_of_the_own_rank_are_wrong_for_the_others_where_all_else_is_as_in_timing() -> None:
    job = Job("GaussianSplatting", world_size=4, trial=0)
    (truth,) = run_each([job])
    assert truth is not None
    truth.assert_passes_own_checks()
    (got,) = run_each([Job("GaussianSplatting", world_size=4, trial=0, solution=assumes_equal_numbers)])
    assert got is None or refused(truth, got)
