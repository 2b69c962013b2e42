# expect: passed
# Torch's symmetric memory alone: each rank reads its peers' buffers as tensors.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

_buffers = {}


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _buffers:
        buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        _buffers[key] = buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
    buffer, handle = _buffers[key]
    buffer.copy_(tensor)
    handle.barrier(channel=0)
    total = torch.zeros_like(tensor, dtype=torch.float32)
    for rank in range(handle.world_size):
        total += handle.get_buffer(rank, tensor.shape, tensor.dtype)
    handle.barrier(channel=1)
    return total.to(tensor.dtype)
