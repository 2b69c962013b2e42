"""Tensors of a heap that lie at equal distances, as one tensor: what is done to all of them takes one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

WORD_BYTES = 8


def stacked(heap: AnyHeap, slot: Mapping[str, Any], count: int, stride: int, rank: int | None = None) -> torch.Tensor:
    """The tensor at a slot and those that follow it, [count, *shape]; no copy.

    Args:
        heap: that they lie in.
        slot: of the first; see `Heap.tensor`.
        count: how many.
        stride: bytes from one to the next.
        rank: whose segment; by default that of the heap's own rank.
    """
    import torch

    shape, dtype = tuple(slot["shape"]), getattr(torch, slot["dtype"])
    nbytes = dtype.itemsize
    for dim in shape:
        nbytes *= dim
    if not nbytes:
        return heap.tensor(slot, rank).expand(count, *shape)
    span = {"offset": slot["offset"], "shape": [(count - 1) * stride + nbytes], "dtype": "uint8"}
    lines = heap.tensor(span, rank).as_strided((count, nbytes), (stride, 1))
    return lines.view(dtype).view(count, *shape)


def raw_slot(offset: int, nbytes: int) -> dict[str, Any]:
    """The slot of a range of bytes: whole words where that can be, of which there are fewer to go through."""
    if offset % WORD_BYTES == 0 and nbytes % WORD_BYTES == 0:
        return {"offset": offset, "shape": [nbytes // WORD_BYTES], "dtype": "int64"}
    return {"offset": offset, "shape": [nbytes], "dtype": "uint8"}
