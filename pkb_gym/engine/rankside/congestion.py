"""Congestion of a rank's GPU during some of its calls: it is slow inside of its kernels, while its peers are not.

Ranks that are late at a call, or held in a wait of `pkb/symm.h`, are slow between kernels and at waits alone. A peer
that departs without waiting for a rank does so while that one's loads are under way, which are over within a
microsecond unless its memory is slow to answer.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.orders import HandoverKind

from .devices import AnyHeap

THREADS = (64, 128)
"""Threads of each multiprocessor that read the host's memory, in turn from call to call, where handovers are enqueued.

A load of a call then takes 20 or 40 microseconds (2 H200, 2026-11-28), longer than peers take to depart. Short kernels
are wrong at one of the two more often than at the other.
"""

MANY_THREADS = 1024
"""Threads where the host waits at handovers: peers take some 300 microseconds to depart."""


class Congestion(Protocol):
    """The congestion of a rank."""

    def begin(self, duration_ns: int, kind: HandoverKind) -> None:
        """Begins it before a call.

        Args:
            duration_ns: Nanoseconds after which it ends at the latest; 0 for no congestion.
            kind: Kind of the handovers between calls.
        """

    def end(self) -> None:
        """Ends it after the call; nothing where none has begun."""


class NoCongestion:
    """The CPU's."""

    def begin(self, duration_ns: int, kind: HandoverKind) -> None:
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
            ctypes.c_int64,
        ]
        self._end.argtypes = [ctypes.c_void_p]
        self._stream = stream
        self._memory = heap.control, abi.HOST_CONTROL_BYTES
        self._grid = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._count = 0
        self._is_on = False

    def begin(self, duration_ns: int, kind: HandoverKind) -> None:
        """Enqueues the begin of a congestion; see `Congestion`."""
        if duration_ns:
            threads = MANY_THREADS if kind == "waiting" else THREADS[self._count % len(THREADS)]
            _check(self._begin(self._stream, *self._memory, self._grid, threads, duration_ns))
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
