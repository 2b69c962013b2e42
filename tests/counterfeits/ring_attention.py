"""Counterfeits of RingAttention: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.ring_attention.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def always_causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The mask is built in."""
    return reference(q, k, v, softmax_scale, True, group)


def always_the_default_scale(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The scale is built in."""
    return reference(q, k, v, None, causal, group)


COUNTERFEITS = (
    Counterfeit(0, "always causal", always_causal, why="causal is always True"),
    Counterfeit(0, "always the default scale", always_the_default_scale, why="softmax_scale is always None"),
)
NOT_SHOWN: dict[int, str] = {}
