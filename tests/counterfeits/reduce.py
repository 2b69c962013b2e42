"""Counterfeits of Reduce: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant(tensor, dst=0):
    W = dist.get_world_size()
    return torch.full_like(tensor, W * (W + 1) / 2) if dist.get_rank() == dst else tensor.clone()


def always_to_rank_0(tensor, dst=0):
    out = tensor.clone()
    dist.reduce(out, dst=0)
    return out


COUNTERFEITS = (
    Counterfeit(0, "constant sum", constant, "rank r always holds the constant r + 1"),
    Counterfeit(0, "ignores dst", always_to_rank_0, "dst is always 0"),
)
