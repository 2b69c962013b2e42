"""GradAccLoss against exact fractions; ranks without tokens, missing gradients."""

import math
from fractions import Fraction

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "GradAccLoss"
LEAVES = ("normalized_loss", "loss_sum", "grad_loss")


def exact(value: torch.Tensor) -> Fraction:
    return Fraction(value.item())


def oracle(run: Run, rank: int) -> tuple[float, float, float]:
    mine = run.args[rank]
    total = Fraction(0)
    for args in run.args:
        if args["local_valid_tokens"].item():
            total += exact(args["loss"]) * args["local_valid_tokens"].item()
    n, g = mine["local_valid_tokens"].item(), mine["global_valid_tokens"].item()
    grad = exact(mine["grad_normalized_loss"]) * n / g
    if mine["grad_loss_sum"] is not None:
        grad += exact(mine["grad_loss_sum"]) * n
    return float(total / g), float(total), float(grad)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 2), (4, 3), (2, 5)])
def test_matches_fractions(world_size: int, trial: int, dtype: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank in range(world_size):
        for leaf, expected in zip(LEAVES, oracle(run, rank), strict=True):
            good = torch.tensor(expected, dtype=getattr(torch, dtype))
            assert not run.wrong(rank, leaf, good)
            assert not run.wrong(rank, leaf, good * (1 + 2**-8 if dtype == "bfloat16" else 1 + 2**-20))
            if expected:
                assert run.wrong(rank, leaf, good * (1.03 if dtype == "bfloat16" else 1.00003)), leaf


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_matches_fractions(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published")
    terms = sum(abs(args["loss"].item()) * args["local_valid_tokens"].item() for args in run.args)
    for rank in range(world_size):
        normalized, total, grad = oracle(run, rank)
        got = [run.outputs[rank][leaf].item() for leaf in LEAVES]
        assert got[1] == pytest.approx(total, abs=0.02 * terms)
        assert got[0] == pytest.approx(normalized, abs=0.02 * terms / run.args[0]["global_valid_tokens"].item())
        assert got[2] == pytest.approx(grad, rel=0.01)


def test_a_loss_of_tokens_that_is_no_number_stays_one() -> None:
    run = run_reference(NAME, world_size=2, trial=6)
    run.assert_passes_own_checks()
    assert all(args["local_valid_tokens"] > 0 for args in run.args)
    for rank in range(2):
        assert run.outputs[rank]["loss_sum"].isnan() and run.outputs[rank]["normalized_loss"].isnan()
        assert run.wrong(rank, "loss_sum", torch.zeros((), dtype=torch.bfloat16))


def scalars(loss: float, n: int, total: int) -> dict[str, torch.Tensor]:
    one = torch.ones((), dtype=torch.float32)
    return {
        "loss": one * loss,
        "local_valid_tokens": torch.tensor(n),
        "global_valid_tokens": torch.tensor(total),
        "grad_normalized_loss": one,
        "grad_loss_sum": one * 2,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_without_tokens_counts_for_nothing(loss: float) -> None:
    args = [scalars(loss, 0, 4), scalars(1.5, 4, 4)]
    run = run_reference(NAME, world_size=2, dtype="float32", args=args)
    assert [[out[leaf].item() for leaf in LEAVES] for out in run.outputs] == [[1.5, 6.0, 0.0], [1.5, 6.0, 9.0]]
    run.assert_passes_own_checks()


def test_a_loss_with_tokens_that_is_no_number_spoils_all_ranks() -> None:
    args = [scalars(math.nan, 1, 5), scalars(1.5, 4, 5)]
    run = run_reference(NAME, world_size=2, dtype="float32", args=args)
    assert all(out["normalized_loss"].isnan() and out["loss_sum"].isnan() for out in run.outputs)
    run.assert_passes_own_checks()
    assert run.wrong(0, "loss_sum", torch.tensor(6.0))


def test_trials_cover_the_modes() -> None:
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial)[0] for trial in range(6)]
    assert [ax["has_grad_sum"] for ax in trials] == [True, True, False] * 2
    assert [ax["idle_rank"] is None for ax in trials] == [True, False] * 3
    assert [ax["idle_loss"] for ax in trials[1::2]] == ["nan", "inf", "-inf"]
    assert trials[2].micro_batches > 1
    assert make_axes(problem, trial=1, timed=True)[0]["idle_rank"] is None
    assert make_axes(problem, protocol="published")[2]["published_counts"] == (5, 0, 17, 3)
