"""Counterfeits of Gather: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def constants(tensor, dst=0):
    if dist.get_rank() != dst:
        return tensor
    return torch.stack([torch.full_like(tensor, s + 1) for s in range(dist.get_world_size())])


def always_to_rank_0(tensor, dst=0):
    if dist.get_rank() != 0:
        dist.gather(tensor, dst=0)
        return tensor
    blocks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.gather(tensor, blocks, dst=0)
    return torch.stack(blocks)


COUNTERFEITS = (
    Counterfeit(0, "constant blocks", constants, "rank s always holds the constant s + 1"),
    Counterfeit(0, "ignores dst", always_to_rank_0, "dst is always 0"),
)
