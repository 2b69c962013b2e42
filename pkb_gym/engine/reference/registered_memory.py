"""Memory that NCCL knows on all ranks, so that its kernels reach peers' tensors where they lie.

A pool of torch's allocator whose segments are registered as symmetric windows (`ncclCommWindowRegister`). NCCL takes a
tensor of a window to lie at the same place of every rank's, so ranks register only what they have allocated alike.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

MIN_NCCL, MIN_TORCH = (2, 27), "2.9"
"""Oldest versions that register windows for torch's pools."""


def can_register() -> bool:
    """Whether torch and NCCL can register memory of this process group; the same on all ranks."""
    if dist.get_backend() != "nccl" or torch.__version__ < MIN_TORCH:
        return False
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # unannotated
    return version >= MIN_NCCL


class RegisteredMemory:
    """The pool of one rank; every rank makes, registers and closes its own in the same order.

    Args:
        device: Device of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Groups that references have made too; each in the order in which all of its ranks made it.
        groups = [group for group in dist.distributed_c10d._world.pg_map if dist.get_backend(group) == "nccl"]
        self._backends: list[Any] = [group._get_backend(device) for group in groups]
        self._pool = torch.cuda.MemPool(self._backends[0].mem_allocator)
        self._registered: list[Any] = []

    @property
    def handle(self) -> _POOL_HANDLE:
        """The pool's handle, as captures take it."""
        return torch.cuda._POOL_HANDLE(self._pool.id)

    def allocating(self) -> AbstractContextManager[None]:
        """Context in which this thread allocates from the pool."""
        return torch.cuda.use_mem_pool(self._pool, self._device)

    def is_laid_out_alike(self, failure: Exception | None) -> bool:
        """Whether the pool is laid out alike on all ranks, none of which has failed to fill it.

        Args:
            failure: Failure of this rank.
        """
        segments = [] if failure is not None else self._pool.snapshot()  # type: ignore[no-untyped-call]  # unannotated
        return self._all_have(layout_hash(segments) if segments else 0)

    def register(self) -> bool:
        """Registers what has been allocated, and what will be, with every group; whether NCCL can, on all ranks."""
        with contextlib.suppress(RuntimeError):
            for backend in self._backends:
                backend.register_mem_pool(self._pool, symm=True)
                self._registered.append(backend)
        return self._all_have(int(len(self._registered) == len(self._backends)))

    def _all_have(self, number: int) -> bool:
        """Whether all ranks have this number, and it is not 0."""
        found = torch.tensor([number, -number], dtype=torch.int64, device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        most, least = int(found[0]), -int(found[1])
        return most == least != 0

    def close(self) -> None:
        """Deregisters it; graphs that were captured on it must be gone."""
        while self._registered:
            self._registered.pop().deregister_mem_pool(self._pool)


def layout_hash(segments: Sequence[Mapping[str, Any]]) -> int:
    """A positive number that differs, but for a chance of 2^-32, where segments or the blocks in them do.

    Args:
        segments: Segments of a pool, as its snapshot lists them.
    """
    layout = sorted(
        (segment["total_size"], [(block["address"] - segment["address"], block["size"]) for block in segment["blocks"]])
        for segment in segments
    )
    return zlib.crc32(repr(layout).encode()) + 1


def copies_of(arguments: Sequence[Sequence[Any]], copy: Callable[[torch.Tensor], torch.Tensor]) -> list[list[Any]]:
    """The arguments of each call with copies of their tensors; one that several calls share is copied once.

    Args:
        arguments: Arguments of each call: tensors, lists of tensors and None, and what holds no tensor.
        copy: Function that copies a tensor.
    """
    copied: dict[tuple[object, ...], torch.Tensor] = {}

    def of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(of(one) for one in value)
        if not isinstance(value, torch.Tensor):
            return value
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in copied:
            copied[key] = copy(value)
        return copied[key]

    return [[of(value) for value in of_call] for of_call in arguments]
