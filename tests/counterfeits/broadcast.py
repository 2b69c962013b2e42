"""Counterfeits of Broadcast: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant(tensor, src=0):
    return torch.ones_like(tensor)


def always_from_rank_0(tensor, src=0):
    out = tensor.clone()
    dist.broadcast(out, src=0)
    return out


COUNTERFEITS = (
    Counterfeit(0, "constant", constant, "rank 0 always holds the constant 1"),
    Counterfeit(0, "ignores src", always_from_rank_0, "src is always 0"),
)
