"""The symmetric heap on GPUs as one rank sees it; see `heap` for the CPU's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import TensorSlot

from .cuda_memory import Mapping
from .dlpack import HeapTensor
from .shared_mapping import Memory, map_shared

if TYPE_CHECKING:
    import torch

_REGISTER_MAPPED = 2  # cudaHostRegisterMapped
STATS = TensorSlot(abi.STATS_OFFSET, (ctypes.sizeof(abi.Stats),), "uint8", ctypes.sizeof(abi.Stats))


class CudaHeap:
    """A mapping of all ranks' segments, and the ranks' control pages in host memory that GPUs can write too.

    Args:
        control_fd: Control page and mailbox of each rank.
        segment_fds: One segment of each rank.
        segment_bytes: Size of each segment in bytes.
        rank: This one, whose device is the current one.

    Attributes:
        segment_bytes: Distance between the segments of two ranks.
        rank: Number of the rank whose segment `tensor` looks in.
        base: Address of rank 0's segment.
        cuda_device: Index of this rank's GPU.
    """

    def __init__(self, control_fd: int, segment_fds: Sequence[int], segment_bytes: int, rank: int) -> None:
        import torch

        world_size = len(segment_fds)
        self.segment_bytes = segment_bytes
        self.rank = rank
        self.cuda_device = torch.cuda.current_device()
        self._world_size = world_size
        self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # unannotated
        self._control = self._map_control(control_fd)
        self._mapping = Mapping(segment_fds, segment_bytes, self.cuda_device)
        self.base = self._mapping.base
        # A tensor of each whole segment, that others are views of; its description must live as long.
        self._described = [
            HeapTensor(self.segment(r), [segment_bytes], "uint8", self.cuda_device) for r in range(world_size)
        ]
        self._bytes = [torch.utils.dlpack.from_dlpack(described) for described in self._described]
        for fd in segment_fds:
            os.close(fd)

    def _map_control(self, fd: int) -> Memory:
        """Maps a control file, which is closed, and lets the GPU reach it."""
        import torch

        control = map_shared(fd, abi.HOST_CONTROL_BYTES * self._world_size)
        registered = self._runtime.cudaHostRegister(ctypes.addressof(control), len(control), _REGISTER_MAPPED)
        torch.cuda.check_error(int(registered))
        return control

    def replace_control(self, fd: int) -> None:
        """Another control file, for the next candidate; the device must be idle."""
        self._runtime.cudaHostUnregister(ctypes.addressof(self._control))
        self._control = self._map_control(fd)

    def segment(self, rank: int) -> int:
        """Address of a rank's segment in this process."""
        return self.base + rank * self.segment_bytes

    def place(self, rank: int) -> abi.Place:
        """The place of a rank, live."""
        return abi.Place.from_buffer(self._control, rank * abi.HOST_CONTROL_BYTES + abi.PLACE_OFFSET)

    def hold(self, rank: int) -> abi.Hold:
        """Whether a rank stands still, live."""
        return abi.Hold.from_buffer(self._control, rank * abi.HOST_CONTROL_BYTES + abi.HOLD_OFFSET)

    def progress(self, rank: int) -> abi.Progress:
        """The progress of a rank, live."""
        return abi.Progress.from_buffer(self._control, rank * abi.HOST_CONTROL_BYTES + abi.PROGRESS_OFFSET)

    @property
    def mailbox(self) -> int:
        """Address of this rank's mailbox, in host memory that the GPU reaches too."""
        return self.control + abi.CONTROL_BYTES

    def bytes(self, rank: int | None = None) -> torch.Tensor:
        """The bytes of a rank's segment, by default of this one's."""
        return self._bytes[self.rank if rank is None else rank]

    @property
    def control(self) -> int:
        """Address of this rank's control page, in host memory."""
        return ctypes.addressof(self._control) + self.rank * abi.HOST_CONTROL_BYTES

    @property
    def stats_address(self) -> int:
        """The address of this rank's counters, in device memory."""
        return self.segment(self.rank) + abi.STATS_OFFSET

    def stats(self) -> abi.Stats:
        """A copy of this rank's counters."""
        return abi.Stats.from_buffer_copy(bytes(self.tensor(STATS).tolist()))

    def clear_stats(self) -> None:
        """Sets this rank's counters to zero."""
        self.tensor(STATS).zero_()

    def tensor(self, slot: TensorSlot, rank: int | None = None) -> torch.Tensor:
        """The tensor at a place in a rank's segment, by default in this one's."""
        import torch

        assert slot.shape is not None
        dtype, count = getattr(torch, slot.dtype), prod(slot.shape)
        if count == 0:
            return torch.empty(slot.shape, dtype=dtype, device=f"cuda:{self.cuda_device}")
        whole = self._bytes[self.rank if rank is None else rank]
        return whole[slot.offset : slot.offset + count * dtype.itemsize].view(dtype).view(slot.shape)

    def zero(self) -> None:
        """Fills this rank's segment with zeros."""
        self._bytes[self.rank].zero_()

    def populate(self, offset: int, nbytes: int) -> None:
        """Nothing: device memory is there from the start."""

    def close(self) -> None:
        """Unmaps it; no tensor made from it may be used afterwards."""
        import torch

        torch.cuda.synchronize()
        self._bytes.clear()
        self._mapping.close()
        self._runtime.cudaHostUnregister(ctypes.addressof(self._control))
