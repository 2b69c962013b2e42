"""The same tensor of several argument sets as one tensor: what is done to all of them takes one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import ITEMSIZE
from pkb_gym.engine.wire.arguments import TensorSlot

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

WORD_BYTES = 8
ROW_BYTES = 256
"""Every tensor begins at a multiple of it, and so do distances between sets."""


def stacked(heap: AnyHeap, slot: TensorSlot, distances: Sequence[int], rank: int | None = None) -> torch.Tensor:
    """The tensors at a slot of one set and at those of others, [sets, *shape]; a copy where there are several.

    Args:
        heap: Heap that holds the tensors.
        slot: Slot of the first tensor.
        distances: Bytes from the first tensor to each, multiples of `ROW_BYTES`; 0 for the first.
        rank: Rank that owns the segment; by default the heap's own rank.
    """
    assert slot.shape is not None
    first = heap.tensor(slot, rank)
    if len(distances) == 1 or not first.numel():
        return first.expand(len(distances), *slot.shape)
    nbytes = prod(slot.shape) * ITEMSIZE[slot.dtype]
    rows = row_index(heap, slot.offset, nbytes, distances)
    found = heap_rows(heap, rank).index_select(0, rows).view(len(distances), -1)[:, :nbytes]
    return found.contiguous().view(first.dtype).view(len(distances), *slot.shape)


def heap_rows(heap: AnyHeap, rank: int | None = None) -> torch.Tensor:
    """A rank's segment, [rows, ROW_BYTES] uint8; no copy."""
    return heap.bytes(rank).view(-1, ROW_BYTES)


def row_index(heap: AnyHeap, offset: int, nbytes: int, distances: Sequence[int]) -> torch.Tensor:
    """The rows that hold a range of bytes of several sets, one set after the other.

    Args:
        heap: Heap whose device holds the index.
        offset: Offset of the range in the first set, in bytes.
        nbytes: Size of the range, in bytes.
        distances: Bytes from the first set to each, as in `stacked`.
    """
    import torch

    device = heap.bytes().device
    first = torch.arange(offset // ROW_BYTES, -(-(offset + nbytes) // ROW_BYTES), device=device)
    steps = torch.tensor([distance // ROW_BYTES for distance in distances], device=device)
    return (steps[:, None] + first).view(-1)


def byte_slot(offset: int, nbytes: int) -> TensorSlot:
    """The slot of a range of bytes."""
    return TensorSlot(offset, (nbytes,), "uint8", nbytes)


def word_slot(offset: int, nbytes: int) -> TensorSlot:
    """The slot of a range of bytes as whole words, of which there are fewer to go through, where that can be."""
    if offset % WORD_BYTES == 0 and nbytes % WORD_BYTES == 0:
        words = nbytes // WORD_BYTES
        return TensorSlot(offset, (words,), "int64", words)
    return byte_slot(offset, nbytes)
