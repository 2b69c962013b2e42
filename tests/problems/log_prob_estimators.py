"""Solutions that estimate log-probabilities under a filtered softmax with a sharded vocabulary, or their gradient."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import TypeAlias

import torch
import torch.distributed as dist

from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob.reference import filter_logits

Group: TypeAlias = dist.ProcessGroup | None
Estimate = Callable[[torch.Tensor, Group, "int | None", "float | None"], tuple[torch.Tensor, torch.Tensor]]
"""Of a rank's logits (T, Vl), with top-k and top-p: the least logit that is kept, and the sum's logarithm."""


def targets(rows: torch.Tensor, target: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of the targets among a rank's own ids, and which of them are there."""
    own = target.reshape(-1) - dist.get_rank(group) * rows.shape[-1]
    here = (own >= 0) & (own < rows.shape[-1])
    return own.where(here, 0)[:, None], here


def log_probs_by(estimate: Estimate) -> Callable[..., torch.Tensor]:
    """The log-probabilities of the targets."""

    def solution(logits, target, tp_group=None, top_k=None, top_p=1.0, *_):
        rows = logits.reshape(-1, logits.shape[-1])
        columns, here = targets(rows, target, tp_group)
        chosen = rows.gather(-1, columns)[:, 0].where(here, 0).float()
        dist.all_reduce(chosen, group=tp_group)
        least, normaliser = estimate(rows, tp_group, top_k, top_p)
        return (chosen - normaliser).where(chosen >= least, -torch.inf).view(target.shape)

    return solution


def gradients_by(estimate: Estimate) -> Callable[..., torch.Tensor]:
    """The gradients of the log-probabilities by a rank's logits."""

    def solution(logits, target, grad_output, tp_group=None, top_k=None, top_p=1.0, *_):
        rows = logits.reshape(-1, logits.shape[-1])
        columns, here = targets(rows, target, tp_group)
        least, normaliser = (each.expand(len(rows))[:, None] for each in estimate(rows, tp_group, top_k, top_p))
        grad = -(rows.float() - normaliser).exp()
        grad.scatter_add_(1, columns, here[:, None].float())
        return (grad * grad_output.reshape(-1, 1).float()).where(rows >= least, 0).view(logits.shape)

    return solution


def the_distribution(rows, group, top_k, top_p):
    """Takes the logits for quantiles of the logistic distribution, and reads none."""
    vocabulary = rows.shape[-1] * dist.get_world_size(group)
    kept = vocabulary if not top_k or top_k <= 0 else min(top_k, vocabulary)
    place = (torch.arange(kept) + 0.5) / vocabulary
    odds = (1 - place) / place
    if top_p is not None and top_p < 1:
        odds = odds[: max(1, int((odds.cumsum(0) - odds < top_p * odds.sum()).sum()))]
    return odds[-1].log(), odds.sum().log()


def part_of_the_vocabulary(left_out: int, one_in: int) -> Estimate:
    """All ids but some of so many, each counted for more."""

    def estimate(rows, group, top_k, top_p):
        read = torch.arange(rows.shape[-1]) % one_in >= left_out
        return filtered(rows[:, read], group, top_k, top_p, float(read.sum() / len(read)))

    return estimate


def filtered(
    rows: torch.Tensor, group: Group, top_k: int | None, top_p: float | None, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least logit that is kept, and the sum's logarithm, of a share of the vocabulary."""
    shards = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, rows.contiguous(), group=group)
    kept = filter_logits(torch.cat(shards, -1), top_k and max(1, round(top_k * share)), top_p).float()
    return kept.where(kept.isfinite(), torch.inf).amin(-1), kept.logsumexp(-1) - log(share)
