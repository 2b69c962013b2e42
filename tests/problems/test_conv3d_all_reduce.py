"""Conv3dAllReduce against the sum over taps of shifted copies of all ranks' channels, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.problems.tensor_parallel.conv3d_all_reduce import reference
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "Conv3dAllReduce"


def expected(run: Run) -> torch.Tensor:
    """Tap by tap: every tap adds a strided slice of the padded input times one matrix of weights per group."""
    total = 0.0
    for ax, args in zip(run.axes, run.args, strict=True):
        (st, sh, sw), (dt, dh, dw) = ax["stride"], ax["dilation"]
        pt, ph, pw = ax["padding"]
        x = torch.nn.functional.pad(args["input"].double(), (pw, pw, ph, ph, pt, pt))
        weight = args["weight"].double()
        _, _, to, ho, wo = ax["out_shape"]
        xs, ws = x.chunk(ax.groups, dim=1), weight.chunk(ax.groups, dim=0)
        for a, b, e in torch.cartesian_prod(*(torch.arange(k) for k in ax["kernel"])).tolist():
            t, h, w = a * dt, b * dh, e * dw
            part = [
                torch.einsum(
                    "nithw,oi->nothw",
                    xg[
                        :,
                        :,
                        t : t + (to - 1) * st + 1 : st,
                        h : h + (ho - 1) * sh + 1 : sh,
                        w : w + (wo - 1) * sw + 1 : sw,
                    ],
                    wg[:, :, a, b, e],
                )
                for xg, wg in zip(xs, ws, strict=True)
            ]
            total = total + torch.cat(part, dim=1)
    bias = run.args[0]["bias"]
    return total if bias is None else total + bias.double().view(1, -1, 1, 1, 1)


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (0, 1), (1, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_trials_match_the_sum_over_taps(trial: int, world_size: int, dtype: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype=dtype)
    want = expected(run)
    for rank, outputs in enumerate(run.outputs):
        assert torch.equal(outputs["out"], run.outputs[0]["out"])
        assert run.wrong(rank, "out", want.to(outputs["out"].dtype)).sum() == 0
        assert run.wrong(rank, "out", (outputs["out"].float() * 1.02 + 0.03).to(outputs["out"].dtype)).any()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match_in_float32(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    assert run.wrong(world_size - 1, "out", expected(run).float()).sum() == 0


def test_very_large_convolutions_go_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, 4, 4, 4, generator=generator)
    weight = torch.randn(5, 6, 3, 3, 3, generator=generator)
    whole = reference.chunked_conv3d(x, weight, 1, (1, 0, 1), 1, 1)
    monkeypatch.setattr(reference, "MAX_ELEMENTS", 100)
    assert reference.channel_pieces(x.numel(), 6) == 6
    torch.testing.assert_close(reference.chunked_conv3d(x, weight, 1, (1, 0, 1), 1, 1), whole)
    with pytest.raises(ZeroDivisionError):  # more pieces than channels
        reference.channel_pieces(x.numel(), 3)


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert least.matrix_flops == pytest.approx(2.464e11, rel=1e-3)
    assert least.memory_bytes == 21_187_584 + 3_538_944 + 1_024 + 71_303_168
    assert least.link_in_bytes == least.link_out_bytes == 71_303_168
    axes = [make_axes(problem, trial=trial, world_size=2)[0] for trial in range(4)]
    assert {ax.groups for ax in axes} == {1, 2}
    assert {bool(ax["has_bias"]) for ax in axes} == {True, False}
    assert all(any(ax[name] != axes[0][name] for ax in axes) for name in ("stride", "padding", "dilation"))
    assert make_axes(problem, trial=1, timed=True)[0]["stride"] == (1, 1, 1)
    with pytest.raises(SizeError, match="C=6 must be a multiple of W=4"):
        problem.axes(size={"C": 6}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="too small"):
        problem.axes(size={"size": (2, 8, 8)}, world_size=4, rank=0)
