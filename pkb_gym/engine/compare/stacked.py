"""Tensors of a heap that lie at equal distances, as one tensor: what is done to all of them takes one kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import ITEMSIZE
from pkb_gym.engine.rankside.arguments import TensorSlot

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

WORD_BYTES = 8


def stacked(heap: AnyHeap, slot: TensorSlot, count: int, stride: int, rank: int | None = None) -> torch.Tensor:
    """The tensor at a slot and those that follow it, [count, *shape]; no copy.

    Args:
        heap: that they lie in.
        slot: of the first.
        count: how many.
        stride: bytes from one to the next.
        rank: whose segment; by default that of the heap's own rank.
    """
    assert slot.shape is not None
    nbytes = prod(slot.shape) * ITEMSIZE[slot.dtype]
    if not nbytes:
        return heap.tensor(slot, rank).expand(count, *slot.shape)
    span = (count - 1) * stride + nbytes
    lines = heap.tensor(byte_slot(slot.offset, span), rank).as_strided((count, nbytes), (stride, 1))
    return lines.view(heap.tensor(slot, rank).dtype).view(count, *slot.shape)


def byte_slot(offset: int, nbytes: int) -> TensorSlot:
    """The slot of a range of bytes."""
    return TensorSlot(offset, (nbytes,), "uint8", nbytes)


def word_slot(offset: int, nbytes: int) -> TensorSlot:
    """The slot of a range of bytes as whole words, of which there are fewer to go through, where that can be."""
    if offset % WORD_BYTES == 0 and nbytes % WORD_BYTES == 0:
        words = nbytes // WORD_BYTES
        return TensorSlot(offset, (words,), "int64", words)
    return byte_slot(offset, nbytes)
