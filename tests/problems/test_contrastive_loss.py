"""ContrastiveLoss against the sum over all pairs, in float64."""

from collections.abc import Iterator

import pytest
import torch

from pkb_gym.engine.problem import Axes
from pkb_gym.engine.problem.inputs import TrialKey
from pkb_gym.engine.problem.trial_inputs import make_inputs
from tests.problems.support import KEY, Run, find_problem, make_axes, run_reference

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
    drawn = [make_axes(problem, trial=trial, timed=timed) for trial in range(6) for timed in (True, False)]
    for axes in drawn:
        assert len({(ax["logit_scale"], ax["logit_bias"]) for ax in axes}) == 1
        assert axes[0]["logit_bias"] * 4 % 1 == 0  # PyTorch rounds it to the dtype on the CPU, and not on GPUs
    assert len({axes[0]["logit_scale"] for axes in drawn}) == 6  # one for each trial
    published = make_axes(problem, protocol="published", size="published", world_size=8)[0]
    assert (published["logit_scale"], published["logit_bias"], published.b) == (10.0, -10.0, 128)


@pytest.mark.parametrize(("world_size", "b"), [(2, 64), (2, 512), (8, 64), (8, 512)])
def test_few_pairs_make_up_the_loss_whatever_the_batch(world_size: int, b: int) -> None:
    """Once they grew as b^2, so that half of the texts, or of the channels, gave the loss of all within 1 %."""
    for ax, image, texts in rank_inputs(world_size, b):
        losses = pair_losses(ax, image, texts).flatten()
        assert losses.topk(250).values.sum() > 0.8 * losses.sum()


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize("channels", [128, 512])
def test_projections_do_not_find_the_pairs_that_count(world_size: int, channels: int) -> None:
    """An eighth of the channels' number, with all pairs near one that counts done exactly, gave the loss to 1e-4."""
    for ax, image, texts in rank_inputs(world_size, 256):
        losses = pair_losses(ax, image, texts)
        rest = [rows.masked_fill(rows.abs() > 0.5, 0) for rows in (image, texts)]  # without the outliers
        projection = torch.randn(ax.D, channels, generator=torch.Generator().manual_seed(1)) / channels**0.5
        found = (rest[0] @ projection) @ (rest[1] @ projection).T
        likely = found.flatten().topk(found.numel() // 50).indices
        assert losses.flatten()[likely].sum() < 0.9 * losses.sum()


def pair_losses(ax: Axes, image: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(ax["logit_scale"] * image @ texts.T + ax["logit_bias"])


def rank_inputs(world_size: int, b: int) -> Iterator[tuple[Axes, torch.Tensor, torch.Tensor]]:
    """Two ranks' axes and images, and the texts of all ranks but itself."""
    problem, size = find_problem(NAME), {"b": b, "D": 1024}
    axes = make_axes(problem, size=size, world_size=world_size, timed=True)
    key = TrialKey(KEY, 0, NAME, 0, 0, True)
    made = [[tensor.float() for tensor in make_inputs(problem, ax, key, "robust")] for ax in axes]
    for rank in (0, world_size - 1):
        yield axes[rank], made[rank][0], torch.cat([texts for other, (_, texts) in enumerate(made) if other != rank])
