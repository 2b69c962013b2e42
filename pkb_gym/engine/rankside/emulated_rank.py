"""One emulated rank: its segment of the emulator's heap, and the candidate's library that it calls."""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.orders import Claims
from rank_emulator import World

from .devices import CpuDevice
from .dlpack import HeapTensor
from .heap import Heap
from .native import Native
from .results import Destination, bad_result

if TYPE_CHECKING:
    import torch


class EmulatedHeap(Heap):
    """The heap of emulated GPUs as one rank sees it: memory of this process, which its library takes for a GPU's.

    Args:
        segments: Address of each rank's segment.
        segment_bytes: Size of each segment in bytes.
        rank: Rank whose segment `tensor` looks in.
    """

    cuda_device: int | None = 0

    def __init__(self, segments: list[int], segment_bytes: int, rank: int) -> None:
        self.segment_bytes, self.rank = segment_bytes, rank
        self._segments = segments
        self._map = (ctypes.c_char * segment_bytes).from_address(segments[rank])
        self.base = segments[0]

    def segment(self, rank: int) -> int:
        """The address of a rank's segment."""
        return self._segments[rank]

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
    """A kernel that is called on an emulated GPU; results are copied when its stream is empty."""

    world: World

    def _deliver(self, slots: tuple[TensorSlot, ...], result: Any) -> Claims:
        import torch

        parts = [result] if len(slots) == 1 and hasattr(result, "__dlpack__") else list(result or ())
        if len(parts) != len(slots):
            raise bad_result(f"expected {len(slots)} returned tensors, got {len(parts)}")
        self.world.synchronize()
        claims = []
        for slot, part in zip(slots, parts, strict=True):
            # The library reports a GPU as its device, which torch does not find here.
            shape, dtype = tuple(map(int, part.shape)), str(part.dtype)
            here = torch.utils.dlpack.from_dlpack(HeapTensor(part.data_ptr(), shape, dtype))
            claims.append(Destination(self._heap, slot).take(here)[1])
        return tuple(claims)
