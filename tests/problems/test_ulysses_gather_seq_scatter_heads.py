"""UlyssesGatherSeqScatterHeads: oracle on the whole tensor, trimming, layouts."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesGatherSeqScatterHeads"


def assert_exchanged(run: Run) -> None:
    """Every output is its heads of the whole sequence, cut where W does not divide the unpadded length."""
    run.assert_passes_own_checks()
    ax = run.axes[0]
    whole = torch.cat([args["x"] for args in run.args], dim=ax.seq_dim)
    length = ax.U if ax.U and ax.U % ax.W else ax.W * ax.T
    for rank, outputs in enumerate(run.outputs):
        share = ax.h // ax.W
        assert same(outputs["out"], whole.narrow(ax.head_dim, rank * share, share).narrow(ax.seq_dim, 0, length))


@pytest.mark.parametrize(
    ("world_size", "trial"), [(1, 0), (1, 2), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (4, 5), (8, 6)]
)
def test_heads_of_the_whole_sequence(world_size, trial):
    assert_exchanged(run_reference(NAME, world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    seed = 42 + 36_000 + world_size - 1 + 1_000_003
    assert torch.equal(run.args[-1]["x"], torch.randn((2, 3, 8, 16), generator=torch.Generator().manual_seed(seed)))
    assert run.outputs[0]["out"].shape == (2, 3 * world_size, 8 // world_size, 16)
    assert_exchanged(run)


def test_a_length_that_is_a_multiple_of_W_is_not_cut():
    problem = find_problem(NAME)
    ax = problem.axes(size={"T": 3, "padding": 4}, world_size=4, rank=0)
    assert (ax.U, ax.S) == (8, 12)
    assert problem.axes(size={"T": 3, "padding": 5}, world_size=4, rank=0).S == 7
    assert problem.axes(size={"T": 3, "padding": 1}, world_size=1, rank=0).S == 3


def test_trials_cover_layouts_and_lengths():
    problem = find_problem(NAME)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(7)]
    assert {(len(ax["x_shape"]), ax.seq_dim, ax.head_dim) for ax in axes} == {(4, 1, 2), (3, 0, 1), (3, 1, 0)}
    assert {ax.U for ax in axes} >= {0, 8, 12}
    assert all(8 < ax.S < 12 for ax in axes if ax.U % 4)
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed.U, timed["out_shape"]) == (0, (16, 64, 2, 64))


def test_illegal_sizes():
    problem = find_problem(NAME)
    for size, message in (
        ({"h": 6}, "multiple of W=4"),
        ({"padding": 64}, "padding=64"),
        ({"layout": "Bhd"}, "layout='Bhd'"),
    ):
        with pytest.raises(SizeError, match=message):
            problem.axes(size=size, world_size=4, rank=0)
