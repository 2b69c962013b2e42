"""AllGatherGemm by PyTorch's fused operation: each shard is multiplied as it comes."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers the operation


@torch.no_grad()
def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Gathers along the contracted dimension."""
    group = dist.group.WORLD
    assert group is not None
    _, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(A_local, [B], 1, group.group_name, return_A=False)
    result: torch.Tensor = product
    return result
