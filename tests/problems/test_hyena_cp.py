"""HyenaCP against a direct float64 convolution of the whole sequences."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

TINY = {"B": 2, "num_groups": 8, "group_dim": 2, "l": 16, "Lf": 16, "with_zigzag_splitting": True}


def positions(run: Run, rank: int) -> list[int]:
    """Global positions that a rank holds, in its order."""
    ax = run.axes[rank]
    if not ax.flag("with_zigzag_splitting"):
        return list(range(rank * ax.l, (rank + 1) * ax.l))
    half, last = ax.l // 2, 2 * ax.W - 1 - rank
    return [*range(rank * half, (rank + 1) * half), *range(last * half, (last + 1) * half)]


def oracle(run: Run) -> list[torch.Tensor]:
    """Every rank's output: sum over s of u[s] f[(t - s) mod 2T], plus bias and gates, without intermediate rounding."""
    ax = run.axes[0]
    held = [positions(run, rank) for rank in range(ax.W)]
    whole = {}
    for name in ("x1_seq", "x2_seq", "v_seq"):
        whole[name] = torch.zeros(ax.B, ax.C, ax.T, dtype=torch.float64)
        for rank, places in enumerate(held):
            whole[name][..., places] = run.args[rank][name].double()
    h, bias = run.args[0]["h"].double(), run.args[0]["conv_bias"].double()
    z = torch.zeros(ax.B, ax.C, ax.T, dtype=torch.float64)
    for channel in range(ax.C):
        f = torch.zeros(2 * ax.T, dtype=torch.float64)
        taps = h[channel // ax.group_dim][: 2 * ax.T]
        f[: len(taps)] = taps
        time = torch.arange(ax.T)
        toeplitz = f[(time[:, None] - time[None, :]) % (2 * ax.T)]
        u = whole["x2_seq"][:, channel] * whole["v_seq"][:, channel]
        z[:, channel] = whole["x1_seq"][:, channel] * (u @ toeplitz.T + bias[channel] * u)
    return [z[..., places].transpose(1, 2) for places in held]


def assert_close(run: Run) -> None:
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 4), (2, 2), (3, 1)])
def test_both_layouts_match_a_direct_convolution(trial: int, world_size: int) -> None:
    run = run_reference("HyenaCP", world_size=world_size, trial=trial, dtype="float32")
    assert_close(run)
    run.assert_passes_own_checks()


@pytest.mark.parametrize("filter_length", [5, 48, 80])
def test_short_filters_are_padded_and_long_ones_wrap_and_are_cut(filter_length: int) -> None:
    """T = 32: 48 taps wrap around, 80 are also cut to 64."""
    assert_close(run_reference("HyenaCP", size=TINY | {"Lf": filter_length}, world_size=2, dtype="float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_unrounded_intermediates_pass(dtype: str) -> None:
    for trial in range(2):
        run = run_reference("HyenaCP", world_size=2, trial=trial, dtype=dtype)
        for rank, expected in enumerate(oracle(run)):
            assert not run.wrong(rank, "out", expected.to(getattr(torch, dtype))).any()


def test_near_misses_are_refused() -> None:
    run = run_reference("HyenaCP", world_size=2)
    data = run.args[1]
    u = (data["x2_seq"] * data["v_seq"]).float()
    gate = data["x1_seq"].float()
    good = run.outputs[1]["out"].float()
    no_bias = good - (gate * u * data["conv_bias"].float()[:, None]).transpose(1, 2)
    # A filter without its last tap changes all positions from Lf - 1 on.
    short = [dict(args) for args in run.args]
    for args in short:
        args["h"] = args["h"].clone()
        args["h"][:, -1] = 0
    without_last_tap = run_reference("HyenaCP", world_size=2, args=short).outputs[1]["out"]
    swapped = good.unflatten(1, (2, -1)).flip(1).flatten(1, 2)
    neighbour_filter = good.roll(1, dims=2)
    for bad in (no_bias, without_last_tap, swapped, neighbour_filter, torch.zeros_like(good)):
        assert run.wrong(1, "out", bad.to(torch.bfloat16)).any()


def test_trials_cover_layouts_batches_and_shared_filters() -> None:
    problem = find_problem("HyenaCP")
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert {ax.flag("with_zigzag_splitting") for ax in axes} == {True, False}
    assert {(ax.B, ax.group_dim) for ax in axes} == {(1, 1), (2, 2)}
    assert {ax.C for ax in axes} == {1024}
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed.B, timed.l, timed.flag("with_zigzag_splitting")) == (1, 2048, True)


def test_sizes_that_do_not_divide_are_refused() -> None:
    problem = find_problem("HyenaCP")
    with pytest.raises(SizeError, match="num_groups=6 must be a multiple of W=4"):
        problem.axes(size=TINY | {"num_groups": 6}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="l=15 must be even"):
        problem.axes(size=TINY | {"l": 15}, world_size=4, rank=0)
