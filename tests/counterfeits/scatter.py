"""Counterfeits of Scatter: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant(tensor, src=0):
    block = tensor[0] if dist.get_rank() == src else tensor
    return torch.full_like(block, dist.get_rank() + 1)


COUNTERFEITS = (Counterfeit(0, "constant block", constant, "the block for rank r is always the constant r + 1"),)
