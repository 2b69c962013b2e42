"""Ranks whose own share is the timed one cannot infer the others' from it, whatever else they look at.

`make test` looks at a sample of the problems, `make all` at every one.
"""

from __future__ import annotations

from typing import Any

import pytest

from pkb_gym.authoring import wrong_collectives
from pkb_gym.engine.problem import Axes, Group, Problem, Scalar
from pkb_gym.engine.problem.inputs import checked_calls
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import refused
from tests.problems.support import Job, find_problem, make_axes, run_each
from tests.whole_tables import sampled

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

TOKENS = "results need the routing of the others' tokens, which differs in timing too, and not their number"
PULLED = "a rank's result hangs on what it asks for itself"
INDEPENDENT = {
    "Scatter": "the source alone has another shape",
    "EmbeddingLookup": PULLED,
    "GNNSparseFeatureFetch": PULLED,
    "NeighborSampling": PULLED,
    "MoETokenPreprocess": TOKENS,
    "MoEDispatch": TOKENS,
    "MoECombine": TOKENS,
    "FusedMoE": TOKENS,
    "FusedMoELoRA": TOKENS,
    "MoEBalanced": TOKENS,
    "MoEWide": TOKENS,
    "MoENarrow": TOKENS,
    "ClipGradNorm": "norms of the others are needed, whatever they are taken of",
    "ClipGradNormEP": "norms of the others are needed, whatever they are taken of",
    "SphericalConvolution": "shares follow from the sizes of the grid, which all ranks are given",
    "SinkhornKnopp": "sums over the others' samples are needed, and their number cancels out",
    "SAM3IoUSuppression": "each rank is given the numbers of all",
}
"""Problems in which no rank has anything to infer -> why."""


def visible(problem: Problem, ax: Axes) -> dict[str, object]:
    """Shapes, scalars and sizes of groups of one rank's arguments, by name."""
    seen: dict[str, object] = {}
    for arg in problem.args:
        if isinstance(arg, Group):
            seen[arg.name] = ax[arg.axis or arg.name] is not None
        elif isinstance(arg, Scalar):
            seen[arg.name] = ax[arg.axis or arg.name]
        else:
            seen |= {leaf.name: leaf.shape for leaf in argument_leaves(arg, ax)}
    return seen


@pytest.mark.parametrize("size", ["tiny", "published", "large"])
@pytest.mark.parametrize("problem", sampled(catalogue(), 9), ids=lambda problem: problem.name)
def test_what_a_rank_sees_of_itself_does_not_tell_timed_calls(problem: Problem, size: str) -> None:
    def trial(number: int, timed: bool = False) -> list[dict[str, object]]:
        axes = make_axes(problem, size=size, world_size=4, trial=number, timed=timed)
        return [visible(problem, ax) for ax in axes]

    timed = [trial(number, timed=True) for number in range(4)]
    always = [
        {name: value for name, value in timed[0][rank].items() if all(each[rank].get(name) == value for each in timed)}
        for rank in range(4)
    ]
    checked = [trial(number) for number in range(checked_calls(4))]
    as_timed = [[own.items() <= seen.items() for own, seen in zip(always, ranks, strict=True)] for ranks in checked]
    names = {
        name
        for ranks in checked
        for own, seen in zip(always, ranks, strict=True)
        for name in own
        if seen.get(name) != own[name]
    }
    differ = any(len({str(seen.get(name)) for seen in ranks}) > 1 for ranks in checked for name in names)
    if differ and problem.name not in INDEPENDENT:
        assert any(any(ranks) and not all(ranks) for ranks in as_timed)


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
