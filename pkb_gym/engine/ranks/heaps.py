"""The symmetric heap as the evaluator sees it: descriptors that it hands to gangs, and where ranks say they stand."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Protocol, Self

from pkb_gym.engine.rankside import abi

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4
_NAMES = {abi.State.LOADING: "loading", abi.State.AT_GATE: "before its first call", abi.State.DONE: "done"}


class SymmetricHeap(Protocol):
    """Memory with one segment a rank.

    Attributes:
        segment_bytes: of each rank.
        world_size: number of segments.
        fds: descriptors to hand to the ranks, as `rankside.devices` takes them.
    """

    segment_bytes: int
    world_size: int

    @property
    def fds(self) -> tuple[int, ...]:
        """See the class."""

    def place(self, rank: int) -> str:
        """The place that a rank reports, in words."""


class SharedHeap:
    """The CPU's: sealed anonymous memory for all segments; pages exist once touched.

    They are gone with the last process that maps them. A context manager that closes the descriptor.
    """

    def __init__(self, segment_bytes: int, world_size: int) -> None:
        self.segment_bytes = segment_bytes
        self.world_size = world_size
        self._fd = sealed_memory("pkb-heap", segment_bytes * world_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def fds(self) -> tuple[int, ...]:
        """See `SymmetricHeap`."""
        return (self._fd,)

    def place(self, rank: int) -> str:
        """See `SymmetricHeap`."""
        with mmap.mmap(self._fd, self.segment_bytes * self.world_size, prot=mmap.PROT_READ) as view:
            begin = rank * self.segment_bytes + abi.PLACE_OFFSET
            place = abi.Place.from_buffer_copy(view[begin : begin + 64])
            words = rank * self.segment_bytes + abi.SIGNAL_OFFSET
            slot = place.slot if 0 <= place.slot < abi.USER_SIGNALS + abi.BARRIER_SIGNALS else 0
            has = int.from_bytes(view[words + 8 * slot : words + 8 * slot + 8], "little")
        return describe_place(place, has)


class DeviceHeap:
    """The GPUs': segments that the ranks of a trusted gang allocated, and control pages in main memory.

    Args:
        segment_bytes: of each rank.
        segment_fds: one segment of each rank; owned from now on.
    """

    def __init__(self, segment_bytes: int, segment_fds: list[int]) -> None:
        self.segment_bytes = segment_bytes
        self.world_size = len(segment_fds)
        self._control = sealed_memory("pkb-control", abi.HOST_CONTROL_BYTES * self.world_size)
        self._segments = segment_fds

    @property
    def fds(self) -> tuple[int, ...]:
        """See `SymmetricHeap`."""
        return (self._control, *self._segments)

    def place(self, rank: int) -> str:
        """See `SymmetricHeap`."""
        begin = rank * abi.HOST_CONTROL_BYTES + abi.PLACE_OFFSET
        return describe_place(abi.Place.from_buffer_copy(os.pread(self._control, 64, begin)), None)

    def reset(self) -> None:
        """Fresh control pages, for the next candidate."""
        os.close(self._control)
        self._control = sealed_memory("pkb-control", abi.HOST_CONTROL_BYTES * self.world_size)

    def close(self) -> None:
        """Closes the descriptors."""
        for fd in self.fds:
            os.close(fd)


def describe_place(place: abi.Place, has: int | None) -> str:
    """The place of a rank, in words.

    Args:
        place: as the rank left it; it can hold anything.
        has: value of the signal that it waits for, if that can be seen.
    """
    if place.state == abi.State.WAITING:
        if place.slot >= abi.USER_SIGNALS:
            peer = (place.slot - abi.USER_SIGNALS) % abi.MAX_RANKS
            return f"waits in barrier {place.want} of call {place.call} for place {peer} of the group"
        value = "" if has is None else f"; it is {has}"
        return f"waits in call {place.call} for signal {place.slot} to be at least {place.want}{value}"
    state = abi.State(place.state) if place.state <= max(abi.State) else abi.State.IDLE
    return _NAMES.get(state, f"in call {place.call}")


def memory_file(name: str, content: bytes) -> int:
    """Descriptor of a file without a place in any folder, gone with the last process that has it open."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.close(fd)
        raise
    return fd


def sealed_memory(name: str, nbytes: int) -> int:
    """Descriptor of anonymous shared memory whose size is fixed.

    A candidate that could shrink it would have every reader of the rest killed by SIGBUS.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd
