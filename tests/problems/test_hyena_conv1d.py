"""HyenaConv1d against a sum over taps on the whole sequence, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "HyenaConv1d"


def oracle(run: Run) -> list[torch.Tensor]:
    """Every rank's output, unrounded: its own filters on the sequence in natural order."""
    n, c = len(run.axes), run.axes[0].l // 2
    chunks: list[torch.Tensor] = [torch.empty(0)] * (2 * n)
    for rank, args in enumerate(run.args):
        chunks[rank], chunks[2 * n - 1 - rank] = args["x"].double().split(c, dim=-1)
    whole = torch.cat(chunks, dim=-1)
    outs = []
    for rank, args in enumerate(run.args):
        y = torch.zeros_like(whole)
        taps = args["weight"].double()[:, 0].unbind(-1)
        for back, tap in enumerate(reversed(taps)):
            y[..., back:] += tap[:, None] * whole[..., : whole.shape[-1] - back]
        mine = y.split(c, dim=-1)
        outs.append(torch.cat((mine[rank], mine[2 * n - 1 - rank]), dim=-1))
    return outs


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 2), (4, 3), (2, 3), (1, 1)])
def test_matches_the_whole_convolution(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["y"].double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("trial", [0, 3])
def test_exact_answers_pass_in_bfloat16_and_near_misses_do_not(trial: int) -> None:
    run = run_reference(NAME, trial=trial)
    c = run.axes[0].l // 2
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "y", expected.bfloat16()).any()
        good = run.outputs[rank]["y"]
        for bad in (good * 1.02, good.roll(1, dims=-1), good.roll(c, dims=-1), good.flip(1)):
            assert run.wrong(rank, "y", bad).any()


def test_without_halos_the_first_positions_are_wrong() -> None:
    run = run_reference(NAME)
    args = [dict(each) for each in run.args]
    for each in args[:1] + args[2:]:
        each["x"] = torch.zeros_like(each["x"])
    lonely = run_reference(NAME, args=args).outputs[1]["y"]
    wrong = run.wrong(1, "y", lonely).any(0).any(0)
    assert wrong[:6].all() and wrong[16:22].all() and not wrong[6:16].any() and not wrong[22:].any()


def test_one_tap_is_a_plain_scaling() -> None:
    run = run_reference(NAME, world_size=2, size={"B": 1, "H": 4, "l": 6, "K": 1})
    for rank in range(2):
        args = run.args[rank]
        assert torch.equal(run.outputs[rank]["y"], args["x"] * args["weight"][:, 0])


def test_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert [(ax.B, ax.l) for ax in axes] == [(1, 2048), (2, 1024), (1, 12), (2, 1024)]
    assert axes[1].K in (2, 3, 4) and [ax.K for ax in axes[::2]] == [7, 7] and axes[3].K == 128
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert (timed.B, timed.K, timed.l) == (1, 7, 2048)
    weights = [[args["weight"] for args in run_reference(NAME, world_size=2, trial=trial).args] for trial in (0, 1)]
    assert [torch.equal(*pair) for pair in weights] == [False, True]
    with pytest.raises(SizeError, match="l=10 must be at least"):
        problem.axes(size={"l": 10}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="l=33 must be even"):
        problem.axes(size={"l": 33}, world_size=4, rank=0)
