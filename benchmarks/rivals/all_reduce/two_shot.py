"""AllReduce by PyTorch's symmetric memory: each rank adds up one part in place and fetches the others'."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_buffers: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum in symmetric memory: all ranks have added up, and fetched, when the operation ends."""
    group = dist.group.WORLD
    assert group is not None
    key = (tensor.shape, tensor.dtype)
    if key not in _buffers:
        _buffers[key] = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        symm_mem.rendezvous(_buffers[key], group)
    buffer = _buffers[key]
    buffer.copy_(tensor)
    torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group.group_name)
    return buffer
