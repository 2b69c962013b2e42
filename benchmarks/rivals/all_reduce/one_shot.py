"""AllReduce by PyTorch's symmetric memory: each rank adds up all tensors, from where they lie."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_buffers: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Copies the tensor into symmetric memory in the same kernel."""
    group = dist.group.WORLD
    assert group is not None
    key = (tensor.shape, tensor.dtype)
    if key not in _buffers:
        _buffers[key] = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        symm_mem.rendezvous(_buffers[key], group)
    result: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(_buffers[key], tensor, "sum", group.group_name)
    return result
