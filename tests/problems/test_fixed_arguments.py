"""What timed calls always hold in an argument that follows from the axes is otherwise where nothing else tells."""

from __future__ import annotations

import pytest

from pkb_gym.engine.problem import Axes, Problem
from pkb_gym.engine.problem.inputs import TrialKey, checked_calls
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.problems.catalogue import catalogue
from tests.problems.support import find_problem, make_axes, same
from tests.problems.test_unequal_ranks import visible
from tests.whole_tables import sampled

FOLLOWS_FROM = {
    ("CSOAttention", "k_ranges"): "ranges",
    ("MoEDispatch", "num_global_tokens_per_local_expert"): "counts",
    ("MoECombine", "num_global_tokens_per_local_expert"): "counts",
    ("SinkhornKnopp", "n_masked_patches_tensor"): "b",
}
"""Problem and argument -> the axis that its contents are."""

VISIBLE = {"SinkhornKnopp": "the number of rows, which the shape of the scores tells"}
"""Problems whose argument tells no more than a shape -> what."""


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 3), ids=lambda problem: problem.name)
def test_all_other_arguments_are_drawn(problem: Problem) -> None:
    axes = make_axes(problem, world_size=2, timed=True)
    first, second = (
        [make_inputs(problem, ax, TrialKey(key, 0, problem.name, 0, 0, True), "robust") for ax in axes]
        for key in (b"one", b"other")
    )
    fixed = {
        arg.name
        for index, arg in enumerate(problem.data_args)
        if all(
            one[index] is not None and same(one[index], other[index]) for one, other in zip(first, second, strict=True)
        )
    }
    assert fixed == {argument for name, argument in FOLLOWS_FROM if name == problem.name}


@pytest.mark.parametrize("size", ["tiny", "published", "large"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize(("name", "argument"), [each for each in FOLLOWS_FROM if each[0] not in VISIBLE])
def test_contents_are_checked_that_timed_calls_lack(name: str, argument: str, world_size: int, size: str) -> None:
    problem, axis = find_problem(name), FOLLOWS_FROM[name, argument]

    def axes_of(trials: int, *, timed: bool) -> list[Axes]:
        return [make_axes(problem, size=size, world_size=world_size, trial=t, timed=timed)[0] for t in range(trials)]

    timed = axes_of(4, timed=True)
    contents = {ax[axis] for ax in timed}
    if len(contents) > 1:
        return  # drawn for each call
    seen = visible(problem, timed[0])
    alike = [ax for ax in axes_of(checked_calls(world_size), timed=False) if visible(problem, ax) == seen]
    assert any(ax[axis] not in contents for ax in alike)
