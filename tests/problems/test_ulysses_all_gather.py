"""UlyssesAllGather: oracle, shapes, edge cases."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAME = "UlyssesAllGather"


def assert_stacked(run: Run) -> None:
    """Rows s*D0 .. (s+1)*D0-1 of every output are rank s's, bit for bit."""
    run.assert_passes_own_checks()
    for outputs in run.outputs:
        for s, args in enumerate(run.args):
            rows = args["x"].shape[0]
            assert same(outputs["out"][s * rows : (s + 1) * rows], args["x"])
        assert outputs["out"].shape[0] == sum(args["x"].shape[0] for args in run.args)


@pytest.mark.parametrize(("world_size", "trial"), [(1, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 1)])
def test_every_rank_gets_every_tensor(world_size, trial):
    assert_stacked(run_reference(NAME, world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_inputs(world_size):
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    seed = 42 + 34_000 + world_size - 1 + 1_000_003
    assert torch.equal(run.args[-1]["x"], torch.randn((32, 24), generator=torch.Generator().manual_seed(seed)))
    assert_stacked(run)


def test_nothing_to_gather_gives_nothing():
    run = run_reference(NAME, world_size=2, size={"x_shape": (0, 4)})
    assert run.outputs[1]["out"].shape == (0, 4)


def test_trials_cover_numbers_of_dimensions():
    problem = find_problem(NAME)
    shapes = [make_axes(problem, trial=trial)[0]["x_shape"] for trial in range(3)]
    assert shapes == [(32, 24), (5, 3, 2), (767,)]
    assert make_axes(problem, size="published", trial=1, timed=True)[0]["x_shape"] == (1024, 1024)
    with pytest.raises(SizeError, match="at least one dimension"):
        problem.axes(size={"x_shape": ()}, world_size=4, rank=0)
