"""GemmReduceScatter by PyTorch's fused operation: each rank's rows leave when they have been multiplied."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers the operation


@torch.no_grad()
def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    """Scatters rows."""
    group = dist.group.WORLD
    assert group is not None
    result: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(A_local, B_local, "sum", 0, group.group_name)
    return result
