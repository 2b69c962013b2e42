"""AllToAll by NCCL on memory that is registered as symmetric windows."""

from typing import Any

import torch
import torch.distributed as dist

_pools: list[torch.cuda.MemPool] = []
_buffers: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}
_outs: dict[int, torch.Tensor] = {}


def place(tensor: torch.Tensor) -> tuple[torch.Tensor]:
    """The argument in registered memory, where production has it; for measurements outside of the evaluator."""
    placed, out = _registered(tensor)
    _outs[placed.data_ptr()] = out
    return (placed.copy_(tensor),)


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Copies an argument that lies elsewhere."""
    if tensor.data_ptr() in _outs:
        source, out = tensor, _outs[tensor.data_ptr()]
    else:
        key = (tensor.shape, tensor.dtype)
        if key not in _buffers:
            _buffers[key] = _registered(tensor)
        source, out = _buffers[key]
        source.copy_(tensor)
    dist.all_to_all_single(out, source)
    return out


def _registered(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor like the argument and one for the result; every rank asks for them in the same order, collectively."""
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(tensor.device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        source = torch.empty_like(tensor)
        out = tensor.new_empty(tuple(tensor.shape))
    backend.register_mem_pool(pool, symm=True)
    _pools.append(pool)
    return source, out
