"""DistributedIRFFT against the Hermitian extension and Fourier sums written out, in complex128."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "DistributedIRFFT"


def inverse_fourier(n: int, norm: str) -> torch.Tensor:
    k = torch.arange(n, dtype=torch.float64)
    scale = {"ortho": n**-0.5, "backward": 1 / n, "forward": 1.0}[norm]
    return scale * torch.polar(torch.ones(n, n, dtype=torch.float64), 2 * torch.pi * k[:, None] * k / n)


def expected(run: Run) -> list[torch.Tensor]:
    """Every rank's columns, by the formulas of the definition."""
    ax = run.axes[0]
    dim0, dim1 = ax["dim"]
    rows = torch.cat([args["x"] for args in run.args], dim=dim0).to(torch.complex128)
    X = rows.movedim((dim0, dim1), (-2, -1))
    n0, n1 = ax["s"] or (ax.Hl, 2 * (ax.Wc - 1))
    F = torch.zeros(*X.shape[:-1], n1, dtype=torch.complex128)
    for p in range(n1):
        for h in range(ax.H):
            if p < ax.Wc:
                F[..., h, p] = X[..., h, p]
            elif n1 - p < ax.Wc:
                F[..., h, p] = X[..., (ax.H - h) % ax.H, n1 - p].conj()
    G = F @ inverse_fourier(n1, ax["norm"])
    kept = min(n0, ax.H)
    Z = inverse_fourier(n0, ax["norm"])[:, :kept] @ G[..., :kept, :]
    return list(Z.real.movedim((-2, -1), (dim0, dim1)).chunk(ax.W, dim=dim1))


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (3, 4), (4, 1), (2, 1), (1, 4)])
def test_trials_match_the_formulas(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    for rank, want in enumerate(expected(run)):
        assert run.wrong(rank, "y", want.float()).sum() == 0
    run.assert_passes_own_checks()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match_the_ordinary_transform(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=2)
    spectrum = torch.cat([args["x"] for args in run.args], dim=2)
    image = torch.cat([outputs["y"] for outputs in run.outputs], dim=3)
    torch.testing.assert_close(image, torch.fft.irfft2(spectrum, s=(16, 24), norm="ortho"))
    torch.testing.assert_close(torch.cat(expected(run), dim=3).float(), image)


def test_without_s_the_local_rows_are_the_length() -> None:
    run = run_reference(NAME, world_size=4, trial=2)
    assert run.axes[0]["s"] is None
    assert run.outputs[0]["y"].shape == (2, 4, 6)


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert least.memory_bytes == 20_764_800 + 20_736_000
    assert least.link_in_bytes == least.link_out_bytes == 31_104_000
    assert least.vector_flops == pytest.approx(5.2e8 / 2, rel=5e-3)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(5)]
    assert {ax["norm"] for ax in axes} == {"ortho", "forward", "backward"}
    assert any(ax["s"] is None for ax in axes)
    assert any(ax.n1 > 2 * ax.Wc - 1 for ax in axes)
    assert any(ax["s"] and ax.n0 < ax.H for ax in axes)
    assert any(ax.n0 > ax.H for ax in axes)
    assert make_axes(problem, trial=1, timed=True)[0]["layout"] == "bchw"
    with pytest.raises(SizeError, match="n1=26 must be a multiple of W=4"):
        problem.axes(size={"n1": 26, "Wc": 14}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="n1=24 must be at least Wc=30"):
        problem.axes(size={"n1": 24, "Wc": 30}, world_size=4, rank=0)
