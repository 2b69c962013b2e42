"""Sums over ranks in another order: around a ring, over a tree or at once, by a seed that all ranks share.

Imports nothing of the package: its text becomes part of candidates.
"""

# the signatures are those of torch.distributed

from __future__ import annotations

import random
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Group: TypeAlias = "dist.ProcessGroup | None"


class FinishedWork:
    """The handle of an asynchronous collective with nothing to wait for."""

    def wait(self) -> bool:
        """Returns at once."""
        return True


class OtherSums:
    """torch.distributed with reductions that gather all addends and add them up here; all else as it is.

    Partial sums are rounded to the dtype of the tensors, as rings and trees do, or once at the end, as switches do.

    Args:
        seed: Seed of the orders, equal on all ranks.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Group = None, async_op: bool = False
    ) -> Any:
        """Sums a tensor over the ranks of a group."""
        if not is_sum(tensor, op):
            return dist.all_reduce(tensor, op, group, async_op)
        tensor.copy_(self._sum(gathered(tensor, group)))
        return FinishedWork() if async_op else None

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int | None = None,
        op: Any = dist.ReduceOp.SUM,
        group: Group = None,
        **more: Any,
    ) -> Any:
        """Sums a tensor for one rank of a group."""
        if not is_sum(tensor, op) or more.get("group_dst") is not None:
            return dist.reduce(tensor, dst, op, group, **more)
        total = self._sum(gathered(tensor, group))
        if dist.get_rank() == dst:
            tensor.copy_(total)
        return FinishedWork() if more.get("async_op") else None

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Group = None,
        async_op: bool = False,
    ) -> Any:
        """Sums a tensor, of which each rank of a group gets a piece."""
        if not is_sum(input, op):
            return dist.reduce_scatter_tensor(output, input, op, group, async_op)
        total = self._sum(gathered(input, group))
        output.copy_(total.reshape(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(output))
        return FinishedWork() if async_op else None

    def _sum(self, addends: list[torch.Tensor]) -> torch.Tensor:
        dtype = addends[0].dtype
        order = self._random.sample(range(len(addends)), len(addends))
        form = self._random.choice(("ring", "tree", "at once"))
        if form == "at once":
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            return torch.stack([addends[rank].to(wide) for rank in order]).sum(0).to(dtype)
        if form == "ring":
            pieces = [around_ring([addends[rank].reshape(-1) for rank in order], start) for start in range(len(order))]
            chosen = torch.arange(pieces[0].numel()) * len(order) // max(1, pieces[0].numel())
            return torch.stack(pieces).gather(0, chosen[None])[0].view_as(addends[0])
        left = [addends[rank] for rank in order]
        while len(left) > 1:
            left = [sum(left[place + 1 : place + 2], left[place]) for place in range(0, len(left), 2)]
        return left[0]


def is_sum(tensor: torch.Tensor, op: Any) -> bool:
    """Whether a reduction is a sum that rounds."""
    return bool(op == dist.ReduceOp.SUM) and tensor.is_floating_point()


def gathered(tensor: torch.Tensor, group: Group) -> list[torch.Tensor]:
    """The tensors of all ranks of a group."""
    found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, tensor.contiguous(), group=group)
    return found


def around_ring(addends: list[torch.Tensor], start: int) -> torch.Tensor:
    """The sum that begins at one rank and rounds at each."""
    total = addends[start]
    for step in range(1, len(addends)):
        total = total + addends[(start + step) % len(addends)]
    return total
