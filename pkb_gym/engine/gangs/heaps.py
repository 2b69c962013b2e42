"""The symmetric heap as the evaluator sees it: descriptors that it hands to gangs, and the reported places of ranks."""

from __future__ import annotations

import ctypes
import fcntl
import os
from dataclasses import dataclass
from typing import Protocol, Self

from pkb_gym.engine.wire import abi

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4
PLACE_BYTES, PROGRESS_BYTES = ctypes.sizeof(abi.Place), ctypes.sizeof(abi.Progress)
_NAMES = {abi.State.LOADING: "loading", abi.State.AT_GATE: "before its first call", abi.State.DONE: "done"}


@dataclass(frozen=True)
class UnmetWait:
    """A wait of a rank for what only other ranks can bring about.

    Attributes:
        call: Number of the call within its block.
        slot: Word of the rank's signal pad; None where the rank is between two calls, until all others are there too.
        want: Value waited for; of no meaning without a slot.
    """

    call: int
    slot: int | None
    want: int = 0


class SymmetricHeap(Protocol):
    """Memory with one segment a rank.

    Attributes:
        segment_bytes: Size of each rank's segment in bytes.
        world_size: Number of segments.
        fds: Descriptors to hand to the ranks, as `rankside.devices` takes them.
    """

    segment_bytes: int
    world_size: int

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to hand to the ranks, in the order that `rankside.devices` takes."""

    def place(self, rank: int) -> str:
        """The place that a rank reports, in words."""

    def unmet_wait(self, rank: int) -> UnmetWait | None:
        """The wait of a rank, if it is not over; None too where the evaluator cannot see that."""


class SharedHeap:
    """The CPU's: sealed anonymous memory for all segments; pages exist once touched.

    They are gone with the last process that maps them. A context manager that closes the descriptor.

    Args:
        segment_bytes: Size of each rank's segment in bytes.
        world_size: Number of ranks.
        conductors: Heap of the gang that conducts the calls of the ranks of this one; None if there is none.
    """

    def __init__(self, segment_bytes: int, world_size: int, conductors: SharedHeap | None = None) -> None:
        self.segment_bytes = segment_bytes
        self.world_size = world_size
        self._conductors = conductors
        self._fd = sealed_memory("pkb-heap", segment_bytes * world_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to hand to the ranks."""
        return (self._fd,)

    def place(self, rank: int) -> str:
        """The place that a rank reports, in words."""
        call = self._call_to_meet_before(rank)
        return describe_place(*self._place_and_signal(rank)) if call is None else describe_meeting(call)

    def unmet_wait(self, rank: int) -> UnmetWait | None:
        """The wait of a rank that is not over; None for none."""
        call = self._call_to_meet_before(rank)
        if call is not None:
            return UnmetWait(call, None)
        place, has = self._place_and_signal(rank)
        is_unmet = place.state == abi.State.WAITING and has < place.want
        return UnmetWait(place.call, place.slot, place.want) if is_unmet else None

    def _call_to_meet_before(self, rank: int) -> int | None:
        """The call before which a rank waits until all others are there too; None if it does not wait so."""
        if self._conductors is None:
            return None
        progress = abi.Progress.from_buffer_copy(self._conductors._read(rank, abi.PROGRESS_OFFSET, PROGRESS_BYTES))
        return progress.reached - 1 if progress.waits_for_all else None

    def _place_and_signal(self, rank: int) -> tuple[abi.Place, int]:
        """The place of a rank, which can hold anything, and the signal that it names."""
        place = abi.Place.from_buffer_copy(self._read(rank, abi.PLACE_OFFSET, PLACE_BYTES))
        slot = place.slot if 0 <= place.slot < abi.USER_SIGNALS + abi.BARRIER_SIGNALS else 0
        return place, int.from_bytes(self._read(rank, abi.SIGNAL_OFFSET + 8 * slot, 8), "little")

    def _read(self, rank: int, offset: int, nbytes: int) -> bytes:
        return os.pread(self._fd, nbytes, rank * self.segment_bytes + offset)


class DeviceHeap:
    """The GPUs': segments that the ranks of a trusted gang allocated, and control pages in main memory.

    Args:
        segment_bytes: Size of each rank's segment in bytes.
        segment_fds: One segment of each rank; owned from now on.
    """

    def __init__(self, segment_bytes: int, segment_fds: list[int]) -> None:
        self.segment_bytes = segment_bytes
        self.world_size = len(segment_fds)
        self._control = sealed_memory("pkb-control", abi.HOST_CONTROL_BYTES * self.world_size)
        self._segments = segment_fds

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to hand to the ranks."""
        return (self._control, *self._segments)

    def place(self, rank: int) -> str:
        """The place that a rank reports, in words."""
        begin = rank * abi.HOST_CONTROL_BYTES + abi.PLACE_OFFSET
        return describe_place(abi.Place.from_buffer_copy(os.pread(self._control, PLACE_BYTES, begin)), None)

    def unmet_wait(self, rank: int) -> UnmetWait | None:  # noqa: ARG002  # as the protocol has it
        """Always None: one block of a kernel may wait while others compute."""
        return None

    def reset(self) -> None:
        """Fresh control pages, for the next candidate."""
        os.close(self._control)
        self._control = sealed_memory("pkb-control", abi.HOST_CONTROL_BYTES * self.world_size)

    def close(self) -> None:
        """Closes the descriptors."""
        for fd in self.fds:
            os.close(fd)


def describe_meeting(call: int) -> str:
    """The place of a rank that waits until all others have reached a call too, in words."""
    return f"has finished call {call - 1}" if call else "before its first call"


def describe_place(place: abi.Place, has: int | None) -> str:
    """The place of a rank, in words.

    Args:
        place: Place that the rank left in its segment; it can hold anything.
        has: Value of the signal that it waits for, if that can be seen.
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
