"""ReduceScatter by PyTorch's symmetric memory: copy engines fetch the terms, and a kernel adds them up."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers the operation


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Sums the row blocks of this rank."""
    group = dist.group.WORLD
    assert group is not None
    total = torch.ops.symm_mem._low_contention_reduce_scatter(tensor, "sum", group.group_name)
    result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(total)
    return result
