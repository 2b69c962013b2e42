"""SphericalConvolution against its definition, entry by entry of the filters, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "SphericalConvolution"


def bounds(size: int, number: int) -> list[tuple[int, int]]:
    """Begin and end of each share."""
    c = -(-size // number)
    if number > 1 and size - c * (number - 1) <= 0:
        c = size // number
    return [(i * c, (i + 1) * c if i < number - 1 else size) for i in range(number)]


def expected(run: Run) -> list[torch.Tensor]:
    ax = run.axes[0]
    A, Q, step = ax.A, ax.Q, ax.nlon_in // ax.nlon_out
    y = torch.zeros(ax.B, ax.Cin, ax.K, ax.nlat_out, ax.nlon_out, dtype=torch.float64)
    for q in range(Q):
        x = torch.cat([run.args[q * A + a]["x"] for a in range(A)], dim=3).double()
        for a, (first, last) in enumerate(bounds(ax.Cin, A)):
            indices, values = run.args[q * A + a]["psi"]
            for (k, o, column), value in zip(indices.T.tolist(), values.tolist(), strict=True):
                i, j = divmod(column, ax.nlon_in)
                at = [(j + p * step) % ax.nlon_in for p in range(ax.nlon_out)]
                y[:, first:last, k, o] += value * x[:, first:last, i, at]
    blocks = []
    for q, (top, bottom) in enumerate(bounds(ax.nlat_out, Q)):
        for a, (left, right) in enumerate(bounds(ax.nlon_out, A)):
            args = run.args[q * A + a]
            out = torch.zeros(ax.B, ax.Cout, bottom - top, right - left, dtype=torch.float64)
            per_in, per_out = ax.Cin // ax.groups, ax.Cout // ax.groups
            for o in range(ax.Cout):
                for c in range(per_in):
                    own = y[:, o // per_out * per_in + c, :, top:bottom, left:right]
                    out[:, o] += torch.einsum("bkhw,k->bhw", own, args["weight"][o, c].double())
            blocks.append(out if args["bias"] is None else out + args["bias"].double().view(1, -1, 1, 1))
    return blocks


@pytest.mark.parametrize(
    ("trial", "world_size"), [(0, 4), (1, 4), (2, 4), (3, 4), (0, 2), (1, 2), (2, 2), (3, 2), (3, 1), (2, 1)]
)
def test_trials_match_the_definition(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    for rank, want in enumerate(expected(run)):
        assert run.wrong(rank, "out", want.float()).sum() == 0


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match_and_have_four_entries_a_row(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1)
    for rank, want in enumerate(expected(run)):
        torch.testing.assert_close(run.outputs[rank]["out"], want.float(), rtol=1e-4, atol=1e-5)
        indices, _ = run.args[rank]["psi"]
        assert indices.shape[1] == 3 * 8 * 4
        assert indices[:, 4:8].tolist() == [[0] * 4, [1] * 4, [16 + 1, 16 + 2, 16 + 3, 16 + 4]]


@pytest.mark.parametrize("size", ["tiny", "published", "large"])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_shares_are_uneven_in_both_groups(world_size: int, size: str) -> None:
    trials = [make_axes(find_problem(NAME), size=size, world_size=world_size, trial=trial) for trial in range(4)]
    for share in ("Ca", "Wl", "Wa", "Hl", "Hq"):
        assert any(len({ax[share] for ax in axes}) > 1 for axes in trials), share


def test_a_last_share_may_be_the_longest() -> None:
    run = run_reference(NAME, size="tiny", world_size=4, trial=3)  # 9 latitudes over 4 ranks
    assert [ax.Hl for ax in run.axes] == [ax.Hq for ax in run.axes] == [2, 2, 2, 3]
    groups = run.axes[0]["azimuth_group"], run.axes[0]["polar_group"]
    assert groups == (((0,), (1,), (2,), (3,)), None)


def test_filters_are_coalesced_with_empty_and_full_rows() -> None:
    run = run_reference(NAME, world_size=2, trial=0)
    for ax, args in zip(run.axes, run.args, strict=True):
        (k, o, column), _ = args["psi"]
        key = (k * ax.nlat_out + o) * ax.columns + column
        assert (key.diff() > 0).all()
        assert column.max() < ax.columns
        counts = torch.bincount(k * ax.nlat_out + o, minlength=ax.K * ax.nlat_out)
        assert counts.max() <= 8
        assert len(counts.unique()) > 3
    assert not torch.equal(run.args[0]["psi"][1][:20], run.args[1]["psi"][1][:20])


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert least.vector_flops == pytest.approx(1.007e8, rel=1e-3)
    assert least.matrix_flops == pytest.approx(1.007e8, rel=1e-3)
    assert least.memory_bytes == 8_388_608 + 43_008 + 8_388_608
    assert least.link_in_bytes == least.link_out_bytes == 8_388_608
    axes = [make_axes(problem, trial=trial)[0] for trial in range(4)]
    assert {ax.groups for ax in axes} == {1, 2}
    assert {ax.nlon_in // ax.nlon_out for ax in axes} == {1, 2}
    assert {bool(ax["has_bias"]) for ax in axes} == {True, False}
    assert [(ax.A, ax.Q) for ax in axes] == [(2, 2), (2, 2), (4, 1), (1, 4)]
    assert len({ax.nnz for ax in make_axes(problem, trial=1)}) > 1
    assert [ax.nnz for ax in make_axes(problem, trial=1, timed=True)] == [96] * 4
    with pytest.raises(SizeError, match="nlon_in=256 must be a multiple of nlon_out=96"):
        problem.axes(size={"nlon_out": 96}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="A=3 must divide W=4"):
        problem.axes(size={"A": 3}, world_size=4, rank=0)
