"""Counterfeits of ReduceScatter: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constant(tensor):
    W = dist.get_world_size()
    return torch.full_like(tensor[: tensor.shape[0] // W], W * (W + 1) / 2)


def first_block(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total[: tensor.shape[0] // dist.get_world_size()]


COUNTERFEITS = (
    Counterfeit(0, "constant sum", constant, "rank r always holds the constant r + 1"),
    Counterfeit(0, "block 0 everywhere", first_block, "all row blocks are alike"),
)
