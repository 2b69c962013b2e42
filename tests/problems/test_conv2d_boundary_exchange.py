"""Conv2dBoundaryExchange against the sum over taps on the whole image, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "Conv2dBoundaryExchange"


def expected(run: Run, rank: int) -> torch.Tensor:
    """One rank's rows: the whole image, padded, from its first extended row on, tap by tap."""
    ax = run.axes[rank]
    p, step, first = ax.padding, ax.stride, rank * ax.Hl
    image = torch.cat([args["x"] for args in run.args], dim=2).double()
    image = torch.nn.functional.pad(image, (p, p, p, p))[:, :, first : first + ax.Hl + 2 * p]
    weight, bias = run.args[rank]["weight"].double(), run.args[rank]["bias"]
    out = torch.zeros(ax.B, ax.Co, ax.Ho, ax.Wo, dtype=torch.float64)
    for h in range(ax.Ho):
        for w in range(ax.Wo):
            window = image[:, :, h * step : h * step + ax.kh, w * step : w * step + ax.kw]
            out[:, :, h, w] = torch.einsum("bcuv,ocuv->bo", window, weight)
    return out if bias is None else out + bias.double().view(1, -1, 1, 1)


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (4, 2), (0, 1), (1, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_trials_match_the_whole_image(trial: int, world_size: int, dtype: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype=dtype)
    for rank, outputs in enumerate(run.outputs):
        assert run.wrong(rank, "out", expected(run, rank).to(outputs["out"].dtype)).sum() == 0


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match_in_float32(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    for rank in range(world_size):
        assert run.wrong(rank, "out", expected(run, rank).float()).sum() == 0


def test_boundary_rows_without_the_neighbours_are_refused() -> None:
    run = run_reference(NAME, world_size=2)
    args = run.args[1]
    alone = torch.nn.functional.conv2d(args["x"], args["weight"], args["bias"], padding=1)
    wrong = run.wrong(1, "out", alone)
    assert wrong[:, :, 0].float().mean() > 0.8
    assert not wrong[:, :, 1:].any()


def test_nan_reaches_the_neighbour() -> None:
    run = run_reference(NAME, world_size=2)
    args = [dict(a) for a in run.args]
    args[0]["x"] = args[0]["x"].clone()
    args[0]["x"][:, :, -1] = torch.nan
    got = run_reference(NAME, world_size=2, args=args).outputs[1]["out"]
    assert got[:, :, 0].isnan().all()
    assert not got[:, :, 1:].isnan().any()


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    costs = [problem.cost(problem.axes(size="published", world_size=4, rank=rank)) for rank in range(4)]
    assert costs[1].matrix_flops == pytest.approx(2.416e11, rel=1e-3)
    assert costs[1].memory_bytes == 20_971_520 + 29_491_200 + 2_560 + 20_971_520
    assert [cost.link_in_bytes for cost in costs] == [327_680, 655_360, 655_360, 327_680]
    assert [cost.link_out_bytes for cost in costs] == [327_680, 655_360, 655_360, 327_680]
    rows = [problem.axes(size="published", world_size=W, rank=0).Hl for W in (1, 2, 4, 8)]
    assert rows == [128, 128, 64, 32]
    axes = [make_axes(problem, trial=trial)[0] for trial in range(5)]
    assert {ax.padding for ax in axes} == {0, 1, 2}
    assert {ax.stride for ax in axes} == {1, 2}
    assert {bool(ax["has_bias"]) for ax in axes} == {True, False}
    assert make_axes(problem, trial=1, timed=True)[0].padding == 1
    with pytest.raises(SizeError, match="Hl=1 must be at least padding=2"):
        problem.axes(size={"Hl": 1, "padding": 2}, world_size=4, rank=0)
