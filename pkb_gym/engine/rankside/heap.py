"""The symmetric heap as one rank sees it: a shared mapping, and tensors that lie in it."""

from __future__ import annotations

import ctypes
import mmap
from math import prod
from typing import TYPE_CHECKING

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import TensorSlot

from .shared_mapping import map_shared

if TYPE_CHECKING:
    import torch

MADV_POPULATE_WRITE = 23


class Heap:
    """A mapping of all ranks' segments.

    Attributes:
        segment_bytes: Distance between the segments of two ranks.
        rank: Number of the rank whose segment `tensor` looks in.
        base: Address of rank 0's segment in this process.
        cuda_device: Index of the GPU that reads the heap; None for no GPU.

    The descriptor is closed, so that the memory can be reached by its addresses alone.
    """

    cuda_device: int | None = None

    def __init__(self, fd: int, segment_bytes: int, world_size: int, rank: int) -> None:
        self.segment_bytes = segment_bytes
        self.rank = rank
        self._map = map_shared(fd, segment_bytes * world_size)
        self.base = ctypes.addressof(self._map)

    def segment(self, rank: int) -> int:
        """Address of a rank's segment in this process."""
        return self.base + rank * self.segment_bytes

    def place(self, rank: int) -> abi.Place:
        """The place of a rank, live."""
        return abi.Place.from_buffer(self._map, rank * self.segment_bytes + abi.PLACE_OFFSET)

    def hold(self, rank: int) -> abi.Hold:
        """Whether a rank stands still, live."""
        return abi.Hold.from_buffer(self._map, rank * self.segment_bytes + abi.HOLD_OFFSET)

    def progress(self, rank: int) -> abi.Progress:
        """The progress of a rank, live."""
        return abi.Progress.from_buffer(self._map, rank * self.segment_bytes + abi.PROGRESS_OFFSET)

    @property
    def mailbox(self) -> int:
        """Address of this rank's mailbox; 0, since handovers on the CPU need none."""
        return 0

    def bytes(self, rank: int | None = None) -> torch.Tensor:
        """A whole segment (by default this rank's) as uint8; no copy."""
        return self.tensor(TensorSlot(0, (self.segment_bytes,), "uint8", self.segment_bytes), rank)

    @property
    def control(self) -> int:
        """Address of this rank's control page."""
        return self.segment(self.rank)

    @property
    def stats_address(self) -> int:
        """The address of this rank's counters."""
        return self.segment(self.rank) + abi.STATS_OFFSET

    def stats(self) -> abi.Stats:
        """A copy of this rank's counters."""
        return abi.Stats.from_buffer_copy(self._map, self.rank * self.segment_bytes + abi.STATS_OFFSET)

    def clear_stats(self) -> None:
        """Sets this rank's counters to zero."""
        ctypes.memset(self.stats_address, 0, ctypes.sizeof(abi.Stats))

    def tensor(self, slot: TensorSlot, rank: int | None = None) -> torch.Tensor:
        """The tensor of a slot whose shape is known, in a rank's segment (this one's by default)."""
        import torch

        assert slot.shape is not None
        dtype, count = getattr(torch, slot.dtype), prod(slot.shape)
        if count == 0:
            return torch.empty(slot.shape, dtype=dtype)
        offset = (self.rank if rank is None else rank) * self.segment_bytes + slot.offset
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(slot.shape)

    def populate(self, offset: int, nbytes: int) -> None:
        """Maps the pages of a range of every segment now, so that no call pays for their first touch."""
        pages = mmap.PAGESIZE
        first = offset // pages * pages
        length = -(-(offset + nbytes - first) // pages) * pages
        world_size = len(self._map) // self.segment_bytes
        libc = ctypes.CDLL(None)
        for rank in range(world_size):
            # Refused before Linux 5.14; the first touches are then paid for by the warm-up calls.
            libc.madvise(ctypes.c_void_p(self.segment(rank) + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE)

    def replace_control(self, fd: int) -> None:
        """Nothing: a heap is made for one evaluation."""

    def zero(self) -> None:
        """Nothing: a heap is made for one evaluation, and its pages come as zeros."""

    def close(self) -> None:
        """Nothing: the mapping goes with the last tensor that lies in it."""
