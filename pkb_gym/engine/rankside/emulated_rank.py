"""One emulated rank: its segment of the emulator's heap, and the candidate's library that it calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.orders import Claims
from rank_emulator import RegionKind, World, is_device_address

from .devices import CpuDevice
from .dlpack import HeapTensor
from .failures import CandidateError
from .heap import Heap
from .native import Native
from .results import Destination, bad_result

if TYPE_CHECKING:
    import torch


class EmulatedHeap(Heap):
    """The heap of emulated GPUs as one rank sees it: its library gets addresses that host code cannot touch.

    Args:
        world: World of the ranks.
        rank: Rank whose segment `tensor` looks in.
    """

    cuda_device: int | None = 0

    def __init__(self, world: World, rank: int) -> None:
        self.segment_bytes, self.rank = world.segment_bytes, rank
        self._segments = world.segments
        self._map = (ctypes.c_char * world.segment_bytes).from_buffer(world.memory(rank))
        self.base = world.segments[0]
        self._control = ctypes.create_string_buffer(abi.CONTROL_BYTES)
        world.add_region(rank, RegionKind.HOST, "control page", self.control, abi.CONTROL_BYTES, element_bytes=8)

    def segment(self, rank: int) -> int:
        """The address of a rank's segment, as kernels use it."""
        return self._segments[rank]

    @property
    def control(self) -> int:
        """Address of this rank's control page, in memory of the host that kernels may touch."""
        return ctypes.addressof(self._control)

    def tensor(self, slot: TensorSlot, rank: int | None = None) -> torch.Tensor:
        """The tensor in a slot of this rank's segment; as `Heap.tensor`."""
        import torch

        assert slot.shape is not None and rank in (None, self.rank)
        dtype, count = getattr(torch, slot.dtype), prod(slot.shape)
        if count == 0:
            return torch.empty(slot.shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=slot.offset).view(slot.shape)

    def populate(self, offset: int, nbytes: int) -> None:
        """Nothing: no time counts."""


class EmulatedDevice(CpuDevice):
    """An emulated GPU, as the calls of a library see it.

    Args:
        rank: Number of the rank, from 0.
        world_size: Number of ranks, at least 1.
        stream: Address of its default stream.
    """

    def __init__(self, rank: int, world_size: int, stream: int) -> None:
        super().__init__(rank, world_size, threads=1)
        self.stream = stream


class EmulatedNative(Native):
    """A kernel that is called on an emulated GPU; results are copied when its stream is empty.

    Attributes:
        world: World of the ranks.
        check_written: Function that is called with the description, the address and the size of a result in bytes.
    """

    world: World
    check_written: Callable[[str, int, int], object]

    def _deliver(self, destinations: tuple[Destination, ...], result: Any) -> Claims:
        import torch

        parts = [result] if len(destinations) == 1 and hasattr(result, "__dlpack__") else list(result or ())
        if len(parts) != len(destinations):
            raise bad_result(f"expected {len(destinations)} returned tensors, got {len(parts)}")
        self.world.synchronize()
        claims = []
        for number, (destination, part) in enumerate(zip(destinations, parts, strict=True)):
            # The library reports a GPU as its device, which torch does not find here.
            shape, dtype = tuple(map(int, part.shape)), str(part.dtype)
            address = self._own_address(f"returned tensor {number}", part.data_ptr(), prod(shape) * part.dtype.itemsize)
            described = HeapTensor(address, shape, dtype)
            here = torch.utils.dlpack.from_dlpack(described)
            claims.append(destination.take(here)[1])
            del here  # before its description
            slot = destination.slot
            delivered = self._heap.segment(self._rank) + slot.offset
            self.world.set_initialised(delivered, slot.capacity * part.dtype.itemsize, is_initialised=True)
        return tuple(claims)

    def _own_address(self, name: str, address: int, nbytes: int) -> int:
        """The address by which this process reads a result."""
        if not nbytes or not is_device_address(address):  # one in memory of the host, which torch copies on GPUs, too
            return address
        own = self.world.own_address(address, nbytes)
        if own is None:
            raise CandidateError("runtime_error", f"{name}: {nbytes} bytes from {address:#x} are no memory of a GPU")
        self.check_written(name, address, nbytes)
        return own
