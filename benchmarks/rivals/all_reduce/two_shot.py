"""AllReduce by PyTorch's symmetric memory: each rank adds up one part in place and fetches the others'."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_buffers: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
_placed: set[int] = set()


def place(tensor: torch.Tensor) -> tuple[torch.Tensor]:
    """The argument in symmetric memory, where production has it; for measurements outside of the evaluator."""
    placed = _symmetric(tensor).copy_(tensor)
    _placed.add(placed.data_ptr())
    return (placed,)


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum in symmetric memory: all ranks have added up, and fetched, when the operation ends."""
    group = dist.group.WORLD
    assert group is not None
    key = (tensor.shape, tensor.dtype)
    buffer = tensor if tensor.data_ptr() in _placed else _buffers.get(key)
    if buffer is None:
        buffer = _buffers[key] = _symmetric(tensor)
    if buffer is not tensor:
        buffer.copy_(tensor)
    torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group.group_name)
    return buffer


def _symmetric(tensor: torch.Tensor) -> torch.Tensor:
    group = dist.group.WORLD
    assert group is not None
    buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    symm_mem.rendezvous(buffer, group)
    return buffer
