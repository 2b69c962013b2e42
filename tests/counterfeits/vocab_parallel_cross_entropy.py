"""Counterfeits of VocabParallelCrossEntropy: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.vocab_parallel.vocab_parallel_cross_entropy.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def reads_one_target(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """The first target gives all others away."""
    V = vocab_parallel_logits.shape[-1] * dist.get_world_size(group)
    token = torch.arange(target.numel(), device=target.device).view(target.shape)
    return reference(vocab_parallel_logits, (13 * token + target[0, 0]) % V, group)


def no_shift(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Neither finds nor subtracts the maximum."""
    logits = vocab_parallel_logits.float()
    Vl = logits.shape[-1]
    c = target - dist.get_rank(group) * Vl
    mine = (c >= 0) & (c < Vl)
    p = logits.gather(-1, c.clamp(0, Vl - 1)[..., None]).squeeze(-1) * mine
    sums = torch.stack((logits.exp().sum(-1), p))
    dist.all_reduce(sums, group=group)
    return (sums[0].log() - sums[1]).to(vocab_parallel_logits.dtype)


COUNTERFEITS = (
    Counterfeit(0, "reads one target", reads_one_target, why="token n has target 13 n + 7 + trial modulo V"),
    Counterfeit(0, "no shift by the maximum", no_shift, why="exp of standard normal logits never overflows"),
)
NOT_SHOWN: dict[int, str] = {}
