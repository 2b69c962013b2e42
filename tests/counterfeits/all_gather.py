"""Counterfeits of AllGather: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constants(tensor):
    blocks = [torch.full_like(tensor, s + 1) for s in range(dist.get_world_size())]
    return torch.stack(blocks)


COUNTERFEITS = (Counterfeit(0, "constant blocks", constants, "rank s always holds the constant s + 1"),)
