"""AllGather by PyTorch's symmetric memory: copy engines fetch the blocks, between two barriers."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers the operation


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Stacks the blocks."""
    group = dist.group.WORLD
    assert group is not None
    blocks = torch.ops.symm_mem._low_contention_all_gather(tensor.unsqueeze(0), group.group_name)
    result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(blocks)
    return result
