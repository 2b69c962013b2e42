"""DistributedRFFT against Fourier sums written as matrices, in complex128, on the data of all ranks."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "DistributedRFFT"


def fourier(n: int, length: int, norm: str, sign: int = -1) -> torch.Tensor:
    """(n, length): the transform of length n of a signal that is padded or cropped from `length`."""
    k, h = torch.arange(n, dtype=torch.float64), torch.arange(min(n, length), dtype=torch.float64)
    scale = {"ortho": n**-0.5, "forward": 1 / n, "backward": 1.0}[norm]
    matrix = scale * torch.polar(torch.ones(n, len(h), dtype=torch.float64), sign * 2 * torch.pi * k[:, None] * h / n)
    return torch.nn.functional.pad(matrix, (0, length - len(h)))


def expected(run: Run) -> list[torch.Tensor]:
    ax = run.axes[0]
    dim0, dim1 = ax["dim"]
    x = torch.cat([args["x"] for args in run.args], dim=dim1).to(torch.complex128)
    rows = fourier(ax.n0, ax.H, ax["norm"])
    columns = fourier(ax.n1, ax.width, ax["norm"])[: ax.n1 // 2 + 1]
    y = torch.tensordot(rows, x, dims=([1], [dim0])).movedim(0, dim0 % x.dim())
    y = torch.tensordot(columns, y, dims=([1], [dim1])).movedim(0, dim1 % x.dim())
    return list(y.chunk(ax.W, dim=dim0))


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (4, 4), (2, 1)])
def test_trials_match_the_sums(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    for rank, want in enumerate(expected(run)):
        assert run.wrong(rank, "y", want.to(torch.complex64)).sum() == 0
    run.assert_passes_own_checks()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match_the_ordinary_transform(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1)
    image = torch.cat([args["x"] for args in run.args], dim=2)
    y = torch.cat([outputs["y"] for outputs in run.outputs], dim=1)
    torch.testing.assert_close(y, torch.fft.rfft2(image, norm="ortho"))
    assert torch.equal(expected(run)[0].real > 0, run.outputs[0]["y"].real > 0)


def test_a_wrong_imaginary_part_is_refused_and_passes_as_published() -> None:
    for protocol, marked in (("robust", True), ("published", False)):
        run = run_reference(NAME, world_size=2, protocol=protocol)
        y = run.outputs[1]["y"]
        real_alone = torch.complex(y.real.contiguous(), torch.zeros_like(y.real))
        assert bool(run.wrong(1, "y", real_alone).any()) == marked
        assert bool(run.wrong(1, "y", y * (1 + 1e-3)).any()) == marked
        assert run.wrong(1, "y", torch.full_like(y, torch.nan)).all()


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert least.memory_bytes == 16_777_216 + 16_809_984
    assert least.link_in_bytes == least.link_out_bytes == 25_165_824
    assert least.vector_flops == pytest.approx(4.19e8 / 2, rel=2e-3)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(5)]
    assert {ax["norm"] for ax in axes} == {"ortho", "forward", "backward"}
    assert any(ax.n0 > ax.H for ax in axes)
    assert any(ax.n0 < ax.H for ax in axes)
    assert any(ax.n1 % 2 for ax in axes)
    assert make_axes(problem, trial=1, timed=True)[0]["layout"] == "bhw"
    with pytest.raises(SizeError, match="n0=10 must be a multiple of W=4"):
        problem.axes(size={"n0": 10}, world_size=4, rank=0)
