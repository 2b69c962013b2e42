"""UlyssesGatherHeadsScatterSeq: oracle on the whole tensor, padding, layouts."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesGatherHeadsScatterSeq"


def assert_exchanged(run: Run) -> None:
    """Every output is its stretch of the sequence with all heads; +0 beyond the end."""
    run.assert_passes_own_checks()
    ax = run.axes[0]
    whole = torch.cat([args["x"] for args in run.args], dim=ax.head_dim).movedim(ax.seq_dim, 0)
    for rank, outputs in enumerate(run.outputs):
        out = outputs["out"].movedim(ax.seq_dim, 0)
        assert len(out) == (ax.T + ax.W - 1) // ax.W
        for i, position in enumerate(out, start=rank * len(out)):
            assert same(position, whole[i] if i < ax.T else torch.zeros_like(position))


@pytest.mark.parametrize(("world_size", "trial"), [(1, 3), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (8, 0), (8, 5)])
def test_all_heads_of_a_stretch(world_size, trial):
    assert_exchanged(run_reference(NAME, world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    T = {1: 9, 2: 10, 4: 12}[world_size]
    seed = 42 + 37_000 + world_size - 1 + 1_000_003
    assert torch.equal(run.args[-1]["x"], torch.randn((2, T, 2, 16), generator=torch.Generator().manual_seed(seed)))
    assert_exchanged(run)


def test_an_empty_sequence_and_ranks_of_zeros_only():
    empty = run_reference(NAME, size={"T": 0}, world_size=2)
    assert empty.outputs[0]["out"].shape == (16, 0, 16, 64)
    eight = [find_problem(NAME).axes(size="tiny", world_size=8, rank=rank) for rank in range(8)]
    assert [ax["real"] for ax in eight] == [2, 2, 2, 2, 1, 0, 0, 0]


def test_check_wants_positive_zeros():
    run = run_reference(NAME, world_size=4)
    minus = run.outputs[3]["out"].clone()
    minus[:, 1:] = -0.0
    assert run.wrong(3, "out", minus).any()


def test_trials_cover_layouts_and_lengths():
    problem = find_problem(NAME)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(7)]
    assert {(len(ax["x_shape"]), ax.seq_dim, ax.head_dim) for ax in axes} == {(4, 1, 2), (3, 0, 1), (3, 1, 0)}
    assert any(ax.T < 4 for ax in axes) and any(ax.T > 4 and ax.T % 4 for ax in axes)
    published = [make_axes(problem, size="published", trial=trial)[0] for trial in range(7)]
    assert any(ax.T % 4 == 0 for ax in published) and any(ax.T > 4 and ax.T % 4 for ax in published)
    large = problem.axes(size="large", world_size=4, rank=0)
    assert (large.T, large.h) == (32768, 16)
    with pytest.raises(SizeError, match="heads=6 must be a multiple of W=4"):
        problem.axes(size={"h": None, "heads": 6}, world_size=4, rank=0)
