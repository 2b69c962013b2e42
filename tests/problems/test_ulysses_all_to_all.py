"""UlyssesAllToAll: oracle on global indices, layouts, edge cases."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesAllToAll"


def oracle(run: Run, rank: int) -> torch.Tensor:
    """Rank's output, by slicing every rank's input."""
    ax = run.axes[rank]
    pieces = []
    for args in run.args:
        x = args["x"].movedim(ax.scatter_dim, 0)
        c = x.shape[0] // ax.W
        pieces.append(x[rank * c : (rank + 1) * c].movedim(0, ax.scatter_dim))
    return torch.cat(pieces, dim=ax.gather_dim)


@pytest.mark.parametrize(("world_size", "trial"), [(1, 1), (2, 2), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (8, 5)])
def test_pieces_land_where_they_belong(world_size, trial):
    run = run_reference(NAME, world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        assert same(outputs["out"], oracle(run, rank))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=2, dtype="float32")
    expected = torch.randn((32, 24), generator=torch.Generator().manual_seed(42 + 33_000 + 2 * 1_000_003))
    assert torch.equal(run.args[0]["x"], expected)
    run.assert_passes_own_checks()
    assert all(same(outputs["out"], oracle(run, rank)) for rank, outputs in enumerate(run.outputs))


def test_two_dimensions_by_index():
    run = run_reference(NAME, world_size=2, size={"x_shape": (4, 3)})
    X = [args["x"] for args in run.args]
    for i in range(2):
        for s in range(2):
            for g in range(3):
                assert same(run.outputs[1]["out"][i, s * 3 + g], X[s][2 + i, g])


def test_trials_cover_layouts_at_every_world_size():
    problem = find_problem(NAME)
    for world_size in (1, 2, 4, 8):
        modes = [make_axes(problem, world_size=world_size, trial=trial)[0] for trial in range(6)]
        assert {(ax.scatter_dim, ax.gather_dim) for ax in modes} == {(0, 1), (2, 1), (-3, -2), (0, 0), (1, 0)}
        assert {len(ax["x_shape"]) for ax in modes} == {2, 3, 4}
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert (timed["x_shape"], timed["out_shape"]) == ((1024, 1024), (256, 4096))


def test_illegal_sizes():
    problem = find_problem(NAME)
    with pytest.raises(SizeError, match="multiple of W=4 along dimension 0"):
        problem.axes(size={"x_shape": (6, 8)}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="must name dimensions"):
        problem.axes(size={"gather_dim": 2}, world_size=4, rank=0)
