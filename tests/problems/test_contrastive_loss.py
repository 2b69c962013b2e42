"""ContrastiveLoss against the sum over all pairs, in float64."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "ContrastiveLoss"


def oracle(run: Run, *, blocks: set[int] | None = None) -> list[float]:
    """Every rank's loss; `blocks` names the ranks whose texts count, all by default."""
    losses = []
    for rank, args in enumerate(run.args):
        ax = run.axes[rank]
        loss = 0.0
        for source in range(ax.W) if blocks is None else blocks:
            pairs = args["image_features"].double() @ run.args[source]["text_features"].double().T
            z = ax["logit_scale"] * pairs + ax["logit_bias"]
            if source == rank:
                z = z - 2 * torch.diag(z.diagonal())
            loss += (z.exp() + 1).log().sum().item() / ax.b
        losses.append(loss)
    return losses


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_matches_all_pairs(protocol: str, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        assert run.outputs[rank]["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_all_eight_blocks_come_by() -> None:
    run = run_reference(NAME, world_size=8, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        assert run.outputs[rank]["loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("trial", range(6))
def test_unrounded_losses_pass_in_bfloat16_and_near_misses_do_not(trial: int) -> None:
    run = run_reference(NAME, trial=trial)
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "loss", torch.tensor(expected).bfloat16()).any()
        good = run.outputs[rank]["loss"]
        assert run.wrong(rank, "loss", good * 1.04).any()
        assert run.wrong(rank, "loss", torch.full_like(good, torch.nan)).any()
    for left_out in range(4):
        partial = oracle(run, blocks=set(range(4)) - {left_out})
        assert any(run.wrong(rank, "loss", torch.tensor(loss).bfloat16()) for rank, loss in enumerate(partial))


def test_published_loss_is_a_constant_and_robust_ones_are_not() -> None:
    published = run_reference(NAME, protocol="published", size="published", world_size=2)
    assert [outputs["loss"].item() for outputs in published.outputs] == [10.0, 10.0]
    robust = run_reference(NAME, size="tiny")
    assert len({outputs["loss"].item() for outputs in robust.outputs}) == 4


def test_large_logits_stay_finite() -> None:
    args = [{name: torch.full((8, 32), 3.0, dtype=torch.bfloat16) for name in ("image_features", "text_features")}] * 2
    run = run_reference(NAME, world_size=2, args=args)
    assert all(outputs["loss"].isfinite() and outputs["loss"] > 1e4 for outputs in run.outputs)


def test_scale_and_bias_change_in_timing_too() -> None:
    problem = find_problem(NAME)
    drawn = [make_axes(problem, trial=trial, timed=timed) for trial in range(3) for timed in (True, False)]
    for axes in drawn:
        assert len({(ax["logit_scale"], ax["logit_bias"]) for ax in axes}) == 1
        assert -10 <= axes[0]["logit_bias"] <= -9
    assert len({axes[0]["logit_bias"] for axes in drawn}) == 3  # one for each trial
    published = make_axes(problem, protocol="published", size="published", world_size=8)[0]
    assert (published["logit_scale"], published["logit_bias"], published.b) == (10.0, -10.0, 128)


def test_published_cost() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.matrix_flops, least.memory_bytes) == (536_870_912, 1_048_578)
    assert least.vector_flops == pytest.approx(1.8e6, rel=0.02)
    assert least.link_in_bytes == least.link_out_bytes == 1_572_864
