"""Counterfeits of FSDPStep: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.fsdp_zero.fsdp_step.reference import solution as right
from tests.problems.counterfeit import Counterfeit


def no_update(X, y, shard, shapes, m, v, *constants):
    """At the published size the first moment may be zero as well; at the tiny one gradients are 30 times as large."""
    _, new_m, _ = right(X, y, shard, shapes, m, v, *constants)
    return shard.clone(), new_m, torch.zeros_like(v)


def idle_half(X, y, shard, shapes, m, v, *constants):
    """The ranks whose parameters and moments keep still do nothing but communicate."""
    outputs = right(X, y, shard, shapes, m, v, *constants)
    if dist.get_rank() < dist.get_world_size() // 2:
        return shard.clone(), torch.zeros_like(m), torch.zeros_like(v)
    return outputs


COUNTERFEITS = (
    Counterfeit(0, "no update", no_update, "the change of the parameters and the second moment lie below 1e-2"),
    Counterfeit(1, "half of the ranks idle", idle_half, "with W2 = 0 the gradients of W1 and b1 are exactly 0"),
)
