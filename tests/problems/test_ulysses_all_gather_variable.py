"""UlyssesAllGatherVariable: oracle, lengths of the trials, edge cases."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesAllGatherVariable"


def assert_joined(run: Run) -> None:
    """Each rank's tensor lies where the lengths before it say, bit for bit."""
    run.assert_passes_own_checks()
    for outputs in run.outputs:
        dim, first = run.axes[0].gather_dim, 0
        for args in run.args:
            length = args["x"].shape[dim]
            assert same(outputs["out"].narrow(dim, first, length), args["x"])
            first += length
        assert outputs["out"].shape[dim] == first


@pytest.mark.parametrize(
    ("world_size", "trial"), [(1, 0), (1, 1), (2, 1), (2, 2), (4, 0), (4, 1), (4, 3), (8, 4), (8, 7)]
)
def test_every_rank_gets_every_tensor(world_size, trial):
    assert_joined(run_reference(NAME, world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", dtype="float32")
    seed = 42 + 35_000 + world_size - 1
    assert torch.equal(run.args[-1]["x"], torch.randn((5, 24), generator=torch.Generator().manual_seed(seed)))
    assert_joined(run)


@pytest.mark.parametrize("lengths", [(5, 0, 9, 3), (0, 0, 0, 0), (0, 0, 0, 2)])
def test_empty_ranks(lengths):
    run = run_reference(NAME, size={"lengths": lengths, "rest": (24,)}, protocol="robust", timed=True)
    assert_joined(run)
    assert run.outputs[2]["out"].shape == (sum(lengths), 24)


def test_lengths_of_the_trials():
    problem = find_problem(NAME)
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(12)]
    lengths = [axes[0]["lengths"] for axes in trials]
    assert len(set(lengths)) == 12
    assert all(512 <= n <= 1536 or n == 0 for row in lengths for n in row)
    assert sum(0 in row for row in lengths) == 4
    assert any(n % 2 for row in lengths for n in row)
    assert {axes[0].gather_dim for axes in trials} == {0, 1, -2}
    assert all(1024 in row and set(row) != {1024} for row in lengths), "own length must not show the others'"
    assert len({axes[1]["x_shape"] for axes in trials}) > 3
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert (timed["lengths"], timed["x_shape"]) == ((1024,) * 4, (1024, 1024))


def test_illegal_sizes():
    problem = find_problem(NAME)
    with pytest.raises(SizeError, match="at least W=4"):
        problem.axes(size={"lengths": (1, 2)}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="one of 2 dimensions"):
        problem.axes(size={"gather_dim": 2}, world_size=4, rank=0)
