"""AllGather by PyTorch's symmetric memory: copy engines fetch the blocks, between two barriers."""

import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Stacks the blocks."""
    group = dist.group.WORLD
    blocks = torch.ops.symm_mem._low_contention_all_gather(tensor.unsqueeze(0), group.group_name)
    return torch.ops._c10d_functional.wait_tensor(blocks)
