"""UlyssesQKVGatherSeqScatterHeads: oracle on the whole Q, K and V, trimming, shapes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesQKVGatherSeqScatterHeads"


def assert_exchanged(run: Run) -> None:
    """Every output holds its columns of Q, K and V of the whole sequence."""
    run.assert_passes_own_checks()
    ax = run.axes[0]
    whole = torch.cat([args["qkv_tensor"] for args in run.args], dim=ax.seq_dim)
    unpadded = ax.number_or_none("U")
    length = unpadded if unpadded and unpadded % ax.W else ax.W * ax.T
    E = whole.shape[-1] // 3
    w = E // ax.W
    for rank, outputs in enumerate(run.outputs):
        out = outputs["out"]
        assert out.shape[ax.seq_dim] == length
        assert out.ndim == whole.ndim + (not ax["restore_shape"])
        parts = out.split(w, dim=-1) if ax["restore_shape"] else out.unbind(-2)
        for a, part in enumerate(parts):
            first = a * E + rank * w
            assert same(part.contiguous(), whole[..., first : first + w].narrow(ax.seq_dim, 0, length))


@pytest.mark.parametrize(("world_size", "trial"), [(1, 1), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (8, 6)])
def test_columns_of_the_whole_sequence(world_size, trial):
    assert_exchanged(run_reference(NAME, world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    seed = 42 + 38_000 + world_size - 1 + 1_000_003
    expected = torch.randn((2, 3, 384), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(run.args[-1]["qkv_tensor"], expected)
    assert run.outputs[0]["out"].shape == (2, 3 * world_size, 384 // world_size)
    assert_exchanged(run)


def test_a_length_that_is_a_multiple_of_W_is_not_cut():
    problem = find_problem(NAME)
    assert problem.axes(size={"T": 3, "padding": 4}, world_size=4, rank=0).S == 12
    assert problem.axes(size={"T": 3, "padding": 5}, world_size=4, rank=0).S == 7
    assert problem.axes(size={"T": 3, "padding": 1}, world_size=1, rank=0).S == 3


def test_columns_need_not_be_whole_heads():
    run = run_reference(NAME, size={"B": 1, "T": 2, "h": 2, "d": 4}, world_size=4)
    assert_exchanged(run)


def test_trials_cover_every_mode():
    problem = find_problem(NAME)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(8)]
    assert {(len(ax["qkv_shape"]), ax["restore_shape"]) for ax in axes} == {
        (3, True),
        (3, False),
        (2, True),
        (2, False),
    }
    assert {ax["U"] for ax in axes} >= {None, 8, 12}
    assert {ax.seq_dim for ax in axes} == {0, 1}
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed["U"], timed["out_shape"]) == (None, (16, 64, 384))
    with pytest.raises(SizeError, match="E=6 must be a multiple of W=4"):
        problem.axes(size={"h": 2, "d": 3}, world_size=4, rank=0)
