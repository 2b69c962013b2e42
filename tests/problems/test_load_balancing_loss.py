"""LoadBalancingLoss against sums in plain Python over every token of every rank."""

import math
import runpy
from typing import Any

import pytest
import torch

from pkb_gym.engine.problem import Axes
from tests.engine.candidates import FOLDER
from tests.problems.counterfeit_runs import refused
from tests.problems.support import Job, Run, find_problem, make_axes, run_jobs, run_reference
from tests.whole_tables import IS_WHOLE

NAME = "LoadBalancingLoss"
TRIALS = 30 if IS_WHOLE else 8
"""Checked and timed trials each that the form of its origin is tried in."""


def rank_loss(logits: list[torch.Tensor], k: int, mask: torch.Tensor | None) -> float:
    """E times the sum over experts of (share of tokens that choose it) * (mean probability), in float64."""
    rows = torch.cat(logits).double().tolist()
    weights = [1.0] * len(rows) if mask is None else mask.double().flatten().tolist() * (len(rows) // mask.numel())
    experts = len(rows[0])
    chosen, probability = [0.0] * experts, [0.0] * experts
    for row, weight in zip(rows, weights, strict=True):
        total = math.fsum(math.exp(x) for x in row)
        for e, x in enumerate(row):
            probability[e] += weight * math.exp(x) / total
        for e in sorted(range(experts), key=lambda e: -row[e])[:k]:
            chosen[e] += weight
    return experts * math.fsum(c * p for c, p in zip(chosen, probability, strict=True)) / sum(weights) ** 2


def oracle(run: Run) -> list[float]:
    return [
        rank_loss(args["gate_logits"], ax.k, args["attention_mask"])
        for ax, args in zip(run.axes, run.args, strict=True)
    ]


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (4, 1), (2, 2), (2, 3), (4, 4), (2, 5)])
def test_matches_plain_sums(world_size: int, trial: int, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol)
    losses = oracle(run)
    mean = sum(losses) / world_size
    for rank in range(world_size):
        assert run.outputs[rank]["loss"].item() == pytest.approx(mean, rel=5e-3)
        assert not Run(run.problem, run.axes, run.args, run.outputs).wrong(rank, "loss", torch.tensor(mean))


@pytest.mark.parametrize("size", ["tiny", "published"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_the_form_of_its_origin_is_right(size: str, world_size: int) -> None:
    """It rounds each expert's sum of probabilities and the quotient to bfloat16, by up to 2^-7 together."""
    origin = runpy.run_path(str(FOLDER / "good" / "published_load_balancing.py"))["solution"]
    jobs = [
        Job(NAME, size=size, world_size=world_size, trial=trial, timed=timed, solution=solution)
        for solution in (None, origin)
        for trial in range(TRIALS)
        for timed in (False, True)
    ]
    runs = run_jobs(jobs)
    for truth, got in zip(runs[: 2 * TRIALS], runs[2 * TRIALS :], strict=True):
        assert not refused(truth, got), (truth.axes[0], truth.outputs[0], got.outputs[0])


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_a_random_part_of_many_tokens_is_not_enough(share: float) -> None:
    """Their mean is that of all within 1 / sqrt(n); the weights of the mask make n small in nearly every call."""
    size = dict(find_problem(NAME).sizes["large"]) | {"L": 8, "seq": 2048, "E": 16, "k": 2}
    verdicts = []
    for trial in range(6):
        run = run_reference(NAME, world_size=2, size=size, trial=trial, timed=True)
        losses = [masked_loss(ax, args) for ax, args in zip(run.axes, run.args, strict=True)]
        assert not run.wrong(0, "loss", torch.tensor(sum(losses) / 2).float())
        partial = [masked_loss(ax, args, share) for ax, args in zip(run.axes, run.args, strict=True)]
        verdicts.append(bool(run.wrong(0, "loss", torch.tensor(sum(partial) / 2).float())))
    assert sum(verdicts) >= 5


def masked_loss(ax: Axes, args: dict[str, Any], share: float = 1.0) -> float:
    """A rank's loss in float64, of a random part of its tokens."""
    logits = torch.cat(args["gate_logits"]).double()
    weight = args["attention_mask"].flatten().double().repeat(ax.L)
    weight *= torch.rand(len(weight), generator=torch.Generator().manual_seed(ax.r)) < share
    chosen = torch.zeros_like(logits).scatter_(1, logits.topk(ax.k).indices, 1.0)
    return float(ax.E * ((weight @ chosen) * (weight @ logits.softmax(1))).sum() / weight.sum() ** 2)


def test_float32_is_accurate() -> None:
    run = run_reference(NAME, world_size=2, trial=2, dtype="float32")
    assert run.outputs[0]["loss"].item() == pytest.approx(sum(oracle(run)) / 2, rel=1e-5)


def test_robust_losses_spread_and_shortcuts_fail() -> None:
    runs = [run_reference(NAME, world_size=2, trial=trial) for trial in (0, 1, 2)]
    values = [run.outputs[0]["loss"].item() for run in runs]
    assert max(values) > 1.1 * min(values)
    for run in runs:
        for wrong in (2.0, *oracle(run), 1.02 * run.outputs[0]["loss"].item()):
            assert run.wrong(0, "loss", torch.tensor(wrong)), wrong
    args = runs[0].args  # padding counts
    unmasked = [rank_loss(one["gate_logits"], 2, None) for one in args]
    assert runs[0].wrong(0, "loss", torch.tensor(sum(unmasked) / 2))


def test_a_uniform_router_gives_k_and_padding_alone_gives_nan() -> None:
    size = {"L": 1, "batch": 2, "seq": 8, "E": 4, "k": 3, "plain": False, "masked": True, "mask_dtype": "int64"}
    logits = torch.zeros(16, 4, dtype=torch.bfloat16)
    mask = torch.ones(2, 8, dtype=torch.int64)
    args = [{"gate_logits": [logits], "attention_mask": mask}] * 2
    run = run_reference(NAME, world_size=2, size=size, args=args)
    assert run.outputs[1]["loss"].item() == pytest.approx(3.0)
    args = [args[0], {"gate_logits": [logits], "attention_mask": 0 * mask}]
    assert run_reference(NAME, world_size=2, size=size, args=args).outputs[0]["loss"].isnan()


def test_trials_cover_the_forms() -> None:
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial)[0] for trial in range(6)]
    forms = [(ax["plain"], ax["mask_dtype"] if ax["masked"] else None) for ax in trials]
    assert forms == [
        (False, "int64"),
        (True, None),
        (False, "float32"),
        (True, "bool"),
        (False, None),
        (False, "int64"),
    ]
    assert trials[1]["logit_shapes"] == ((64, 8),)
    assert len({ax.k for ax in (make_axes(problem, trial=trial)[0] for trial in range(12))}) > 2
    assert make_axes(problem, size="published", trial=2, timed=True)[0]["plain"]
