"""Python modules that show a communication pattern: torch.distributed, with work beside the communication."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_RING = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    rank, W = dist.get_rank(), dist.get_world_size()
    out = tensor.new_empty(W, *tensor.shape)
    out[rank] = tensor
    for step in range(W - 1):  # each rank sends on what has come last
        send, recv = out[(rank - step) % W], out[(rank - step - 1) % W]
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, send, (rank + 1) % W), dist.P2POp(dist.irecv, recv, (rank - 1) % W)]
        )
        for work in works:
            work.wait()
    return out
"""

_FETCH = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    work = dist.all_gather_into_tensor(out, tensor.contiguous(), async_op=True)
    # What needs no other rank stands here.
    work.wait()
    return out
"""

_SUM = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()  # arguments stay as they are
    works = [dist.all_reduce(part, async_op=True) for part in out.view(-1).chunk(2)]
    for work in works:  # what needs a part alone stands after its wait, beside the sum of the next
        work.wait()
    return out
"""

_EXCHANGE = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    rank, W = dist.get_rank(), dist.get_world_size()
    send, out = tensor.contiguous().chunk(W), torch.empty_like(tensor)
    recv = out.chunk(W)
    recv[rank].copy_(send[rank])
    peers = [(rank + k) % W for k in range(1, W)]
    moves = [dist.P2POp(dist.isend, send[r], r) for r in peers] + [dist.P2POp(dist.irecv, recv[r], r) for r in peers]
    for work in dist.batch_isend_irecv(moves) if moves else ():
        work.wait()
    return out
"""

_PRODUCT_AND_SUM = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    out = A_local.new_empty(A_local.shape[0], B_local.shape[1])
    works = []
    for rows, part in zip(A_local.chunk(4), out.chunk(4)):
        torch.matmul(rows, B_local, out=part)  # beside the sum of the rows before
        works.append(dist.all_reduce(part, async_op=True))
    for work in works:
        work.wait()
    return out
"""

_GATHER_AND_PRODUCT = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(A_local: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    rank, W = dist.get_rank(), dist.get_world_size()
    shards = A_local.new_empty(W, *A_local.shape)
    work = dist.all_gather_into_tensor(shards, A_local.contiguous(), async_op=True)
    factors = B.view(W, -1, B.shape[1])
    out = A_local.float() @ factors[rank].float()  # beside the gather
    work.wait()
    for r in range(W):
        if r != rank:
            out += shards[r].float() @ factors[r].float()
    return out.to(B.dtype)
"""

MODULES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "gemm": (("GemmAllReduce", _PRODUCT_AND_SUM), ("AllGatherGemm", _GATHER_AND_PRODUCT)),
        "exchange": (("AllToAll", _EXCHANGE),),
        "push": (("AllGather", _RING),),
        "reduce": (("AllReduce", _SUM),),
        "pull": (("AllGather", _FETCH),),
    }
)
"""Pattern -> problems of the train split, each with a module that solves it."""
