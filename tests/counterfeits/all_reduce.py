"""Counterfeits of AllReduce: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant(tensor):
    W = dist.get_world_size()
    return torch.full_like(tensor, W * (W + 1) / 2)


COUNTERFEITS = (Counterfeit(0, "constant sum", constant, "rank r always holds the constant r + 1"),)
