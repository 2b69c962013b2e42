"""Congestion of a rank's GPU during some of its calls: it is slow inside of its kernels, while its peers are not.

Ranks that are late at a call, or held in a wait of `pkb/symm.h`, are slow between kernels and at waits alone. A peer
that departs without waiting for a rank does so while that one's loads are under way, which are over within a
microsecond unless its memory is slow to answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

from pkb_gym.engine.wire import abi

from .devices import AnyHeap


@dataclass(frozen=True)
class Readers:
    """What reads the host's memory beside a call.

    Attributes:
        threads: Threads of a block, of which each multiprocessor has one.
        is_uneven: Whether only every other block reads: some blocks of a call are slow then, while others are not.
    """

    threads: int
    is_uneven: bool = False


READERS = (Readers(64), Readers(128), Readers(64), Readers(128, is_uneven=True))
"""Those of consecutive congested calls, in turn.

A load of a call takes 20 or 40 microseconds beside all of them (2 H200, 2026-11-28). Short kernels are wrong at one of
the two more often than at the other; with more threads calls take so long that the congestion ends before they do.
"""


class Congestion(Protocol):
    """The congestion of a rank."""

    def begin(self, duration_ns: int) -> None:
        """Begins it before a call, for so many nanoseconds at most; 0 for no congestion."""

    def end(self) -> None:
        """Ends it after the call; nothing where none has begun."""


class NoCongestion:
    """The CPU's."""

    def begin(self, duration_ns: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class GpuCongestion:
    """A kernel beside those of the calls; see `rankside/congestion.cu`.

    Args:
        library: Compiled library of ranks.
        stream: Address of the stream of the calls.
        heap: Heap whose control page, in the host's memory, is read.
    """

    def __init__(self, library: ctypes.CDLL, stream: int, heap: AnyHeap) -> None:
        import torch

        self._begin, self._end = library.pkb_enqueue_congestion, library.pkb_enqueue_end_of_congestion
        self._begin.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int64,
        ]
        self._end.argtypes = [ctypes.c_void_p]
        self._stream = stream
        self._memory = heap.control, abi.HOST_CONTROL_BYTES
        self._grid = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._count = 0
        self._is_on = False

    def begin(self, duration_ns: int) -> None:
        """Enqueues the begin of a congestion; see `Congestion`."""
        if duration_ns:
            readers = READERS[self._count % len(READERS)]
            kernel = self._grid, readers.threads, readers.is_uneven
            _check(self._begin(self._stream, *self._memory, *kernel, duration_ns))
            self._count += 1
            self._is_on = True

    def end(self) -> None:
        """Enqueues its end."""
        if self._is_on:
            _check(self._end(self._stream))
            self._is_on = False


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"no congestion could be enqueued: CUDA error {status}")
