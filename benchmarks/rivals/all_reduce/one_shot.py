"""AllReduce by PyTorch's symmetric memory: each rank adds up all tensors, from where they lie."""

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
    """Copies an argument that lies elsewhere: `one_shot_all_reduce_copy` signals before all of it is copied."""
    group = dist.group.WORLD
    assert group is not None
    key = (tensor.shape, tensor.dtype)
    buffer = tensor if tensor.data_ptr() in _placed else _buffers.get(key)
    if buffer is None:
        buffer = _buffers[key] = _symmetric(tensor)
    if buffer is not tensor:
        buffer.copy_(tensor)
    result: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group.group_name)
    return result


def _symmetric(tensor: torch.Tensor) -> torch.Tensor:
    group = dist.group.WORLD
    assert group is not None
    buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    symm_mem.rendezvous(buffer, group)
    return buffer
