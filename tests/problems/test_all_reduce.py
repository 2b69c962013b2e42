"""AllReduce: oracle, what the check forgives and what it does not, published inputs."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from tests.problems.support import Run, run_reference, same

NAME = "AllReduce"
UNIT = {None: 2**-8, "bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24, "float64": 2**-53}
"""Largest relative error of one rounding."""


def addends(run: Run) -> list[torch.Tensor]:
    return [args["tensor"].double() for args in run.args]


@pytest.mark.parametrize(
    ("world_size", "dtype"),
    [(1, None), (2, "float32"), (4, None), (4, "float16"), (8, "float64")],
)
def test_every_rank_gets_the_sum(world_size: int, dtype: str | None) -> None:
    """W - 1 additions, each rounded: an error of at most (W - 1) u times the sum of the addends' sizes, and a bit."""
    run = run_reference(NAME, world_size=world_size, dtype=dtype)
    run.assert_passes_own_checks()
    exact = torch.stack(addends(run)).sum(0)
    sizes = torch.stack(addends(run)).abs().sum(0)
    for rank, outputs in enumerate(run.outputs):
        out = outputs["out"]
        assert same(out, run.outputs[0]["out"]), "all ranks hold the same bits"
        assert ((out.double() - exact).abs() <= 1.1 * max(1, world_size - 1) * UNIT[dtype] * sizes).all()
        assert not run.wrong(rank, "out", exact.to(out.dtype)).any(), "one rounding at the end is as good"


def test_elements_by_exact_arithmetic() -> None:
    """Fractions know no rounding: the first elements, with nothing of torch in the sum."""
    run = run_reference(NAME, dtype="float64")
    columns = [args["tensor"].flatten()[:64].tolist() for args in run.args]
    exact = [float(sum(map(Fraction, addends))) for addends in zip(*columns, strict=True)]
    assert run.outputs[2]["out"].flatten()[:64].tolist() == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("missing", [0, 3])
def test_a_sum_without_one_rank_or_with_one_twice_is_wrong(missing: int) -> None:
    run = run_reference(NAME)
    exact = torch.stack(addends(run)).sum(0)
    for changed in (exact - addends(run)[missing], exact + addends(run)[missing]):
        assert run.wrong(1, "out", changed.to(torch.bfloat16)).float().mean() > 0.5


def test_an_addend_of_the_call_before_is_wrong() -> None:
    """A kernel that does not wait for a peer adds what lay there before."""
    run, before = (run_reference(NAME, world_size=2, trial=trial) for trial in (1, 0))
    stale = addends(run)[0] + addends(before)[1]
    assert run.wrong(0, "out", stale.to(torch.bfloat16)).float().mean() > 0.9


def test_the_check_forgives_roundings_and_no_more() -> None:
    run = run_reference(NAME)
    exact, sizes = torch.stack(addends(run)).sum(0), torch.stack(addends(run)).abs().sum(0)
    place = int(sizes.flatten().argmax())
    for share, is_wrong in ((0.5, False), (2.0, True)):
        got = exact.clone()
        got.view(-1)[place] += share * 4 * UNIT[None] * sizes.view(-1)[place]
        assert bool(run.wrong(0, "out", got.to(torch.bfloat16)).view(-1)[place]) is is_wrong


def test_published_sums_are_a_constant() -> None:
    """The weakness that the declaration names: W (W + 1) / 2 everywhere, whatever the trial."""
    for trial in (0, 1):
        run = run_reference(NAME, protocol="published", trial=trial)
        run.assert_passes_own_checks()
        assert all((outputs["out"] == 10).all() for outputs in run.outputs)
    robust = run_reference(NAME)
    constant = torch.full_like(robust.outputs[0]["out"], 10)
    assert robust.wrong(0, "out", constant).float().mean() > 0.9
