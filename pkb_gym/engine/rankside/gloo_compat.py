"""torch.distributed on gloo, made to behave as on NCCL where the two differ.

Applied alike beside the baseline and beside candidates of the python dialect, so that one source runs on both devices:

- `reduce` leaves the buffers of the other ranks as they were (gloo leaves partial sums there);
- `all_gather_into_tensor` takes an output of shape (W, *shape) as well as one of shape (W * n, ...);
- `reduce_scatter_tensor` takes an input of shape (W, *shape) likewise;
- `all_gather` takes tensors of unequal sizes, by one broadcast a rank, as NCCL does;
- `all_to_all` takes lists of tensors of unequal sizes, as one message of all their elements;
- collectives that move tensors take float8, as bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})

MOVING = (
    *("all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single"),
    *("broadcast", "gather", "scatter"),
)
"""Collectives without arithmetic. Those from one rank to another are left out: `P2POp` takes none but torch's own."""


def install() -> None:
    """Replaces the functions; calling it again changes nothing."""
    if getattr(dist, "_pkb_gloo_compat", False):
        return
    _reduce, _all_gather, _into_tensor = dist.reduce, dist.all_gather, dist.all_gather_into_tensor
    _reduce_scatter_tensor, _all_to_all_single = dist.reduce_scatter_tensor, dist.all_to_all_single

    def reduce(tensor: torch.Tensor, dst: int | None = None, *args: Any, **kwargs: Any) -> Any:
        keep = tensor.clone()
        root = dst
        if kwargs.get("group_dst") is not None:
            root = dist.get_global_rank(kwargs["group"], kwargs["group_dst"])
        work = _reduce(tensor, dst, *args, **kwargs)
        if dist.get_rank() == root:
            return work
        if work is not None:
            work.wait()
        tensor.copy_(keep)
        return work

    def all_gather_into_tensor(
        output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        stacked = output_tensor.dim() == input_tensor.dim() + 1 and input_tensor.dim() > 0
        return _into_tensor(output_tensor.flatten(0, 1) if stacked else output_tensor, input_tensor, *args, **kwargs)

    def all_gather(
        tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if all(out.shape == tensor_list[0].shape for out in tensor_list):
            return _all_gather(tensor_list, tensor, group=group, async_op=async_op)
        work = None
        for source, out in enumerate(tensor_list):
            if dist.get_rank(group) == source:
                out.copy_(tensor)
            root = source if group is None else dist.get_global_rank(group, source)
            work = dist.broadcast(out, src=root, group=group, async_op=async_op)
        return work

    def reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002  # torch's name
        stacked = input.dim() == output.dim() + 1 and output.dim() > 0
        return _reduce_scatter_tensor(output, input.flatten(0, 1) if stacked else input, *args, **kwargs)

    def all_to_all(
        output_tensor_list: list[torch.Tensor],
        input_tensor_list: list[torch.Tensor],
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        sent = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
        counts = [tensor.numel() for tensor in output_tensor_list]
        received = sent.new_empty(sum(counts))
        sizes = counts, [tensor.numel() for tensor in input_tensor_list]
        work = _all_to_all_single(received, sent, *sizes, group=group, async_op=True)
        if work is None:  # this rank is in no such group
            return None
        parts = torch.split(received, counts)
        lists = Unpacking(work, parts, output_tensor_list)
        if async_op:
            return lists
        lists.wait()
        return None

    dist.reduce, dist.all_gather, dist.all_gather_into_tensor = reduce, all_gather, all_gather_into_tensor
    dist.reduce_scatter_tensor, dist.all_to_all = reduce_scatter_tensor, all_to_all
    for name in MOVING:
        setattr(dist, name, with_float8_as_bytes(getattr(dist, name)))
    dist._pkb_gloo_compat = True  # type: ignore[attr-defined]  # a mark of ours


class Unpacking:
    """A collective that ends with copies into several tensors, which are made when it is waited for.

    Args:
        work: Collective that is waited for.
        received: Tensors that the collective leaves its results in.
        outputs: Tensors that the results belong in.
    """

    def __init__(self, work: dist.Work, received: tuple[torch.Tensor, ...], outputs: list[torch.Tensor]) -> None:
        self._work, self._left = work, list(zip(outputs, received, strict=True))

    def wait(self, *args: Any) -> bool:
        """Waits for the collective and makes the copies."""
        self._work.wait(*args)
        while self._left:
            output, received = self._left.pop()
            output.copy_(received.view(output.shape))
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def with_float8_as_bytes(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that is given the bytes of float8 tensors, alone or in lists."""

    @functools.wraps(collective)
    def moved(*args: Any, **kwargs: Any) -> Any:
        return collective(*map(_bytes_of, args), **{name: _bytes_of(value) for name, value in kwargs.items()})

    return moved


def _bytes_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.view(torch.uint8) if value.dtype in FLOAT8 else value
    if isinstance(value, list | tuple):
        return [_bytes_of(part) for part in value]
    return value
