"""Counterfeits of AllToAll: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constants(tensor):
    blocks = [torch.full_like(tensor[0], 10 * s + dist.get_rank()) for s in range(dist.get_world_size())]
    return torch.stack(blocks)


COUNTERFEITS = (Counterfeit(0, "constant blocks", constants, "block d of rank s is always the constant 10 s + d"),)
