"""A rank's side of handovers: between two calls, on its own stream, the one departs and the next arrives.

The rank program only reports that its stream has arrived there, and waits until the trusted side has done its part.
Which lines of the arguments arrive, and what they hold, is not known in this process before.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Protocol

from pkb_gym.engine.wire.orders import HandoverKind

from .congestion import Congestion, GpuCongestion, NoCongestion
from .devices import AnyHeap, Device


class Handover(Protocol):
    """The steps of a rank before each call of a block, and after the last."""

    def cross(self) -> None:
        """Ends the call before, begins the one after."""


class NoHandover:
    """All arguments are in place from the start, and outputs are compared after the block alone."""

    def cross(self) -> None:
        """Nothing."""


YIELDS, NAPS, NAP_S = 100, 20_000, 50e-6
"""The most of each that a thread waits until it is free: a scheduler that owes it time gives it back what it yields."""


class WaitingHandover:
    """The host waits until its stream has come there, then for the trusted side; on the CPU it is the stream itself.

    Args:
        device: Device of this rank.
        request_fd: An eventfd, written to by this rank.
        reply_fd: An eventfd, read by this rank.
    """

    def __init__(self, device: Device, request_fd: int, reply_fd: int) -> None:
        self._device, self._request_fd, self._reply_fd = device, request_fd, reply_fd
        self._is_held = len(os.sched_getaffinity(0)) > 1

    def cross(self) -> None:
        """Waits for the stream, then for the trusted side."""
        self._device.synchronize_stream()
        os.eventfd_write(self._request_fd, 1)
        while True:
            try:
                os.eventfd_read(self._reply_fd)
                break
            except InterruptedError:  # a candidate may have timers, and Python does not go on with this call by itself
                continue
        if self._is_held:
            self._wait_for_release()

    def _wait_for_release(self) -> None:
        """The trusted side wakes this thread on its own processor, then frees it: threads inherit their processors."""
        for wait in range(YIELDS + NAPS):
            if len(os.sched_getaffinity(0)) > 1:
                return
            if wait < YIELDS:
                os.sched_yield()
            else:
                time.sleep(NAP_S)


class EnqueuedHandover:
    """A kernel on the rank's stream waits for the trusted side, while the host goes on.

    Args:
        library: Compiled library of ranks, see `rankside/handover.cu`.
        stream: Address of the stream.
        mailbox: Address of the mailbox on the GPU.
        segment: Address of this rank's segment of the heap.
        sequence: Number of handovers so far.
    """

    def __init__(self, library: ctypes.CDLL, stream: int, mailbox: int, segment: int, sequence: int = 0) -> None:
        self._enqueue = library.pkb_enqueue_handover
        self._enqueue.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64]
        self._stream, self._mailbox, self._segment = stream, mailbox, segment
        self.sequence = sequence
        self.pad_ns = 0

    def cross(self) -> None:
        """Enqueues the handover."""
        self.sequence += 1
        status = self._enqueue(self._stream, self._mailbox, self._segment, self.sequence, self.pad_ns)
        if status:
            raise RuntimeError(f"no handover could be enqueued: CUDA error {status}")


class NullCall(Protocol):
    """A call without arguments and results, for measuring what lies between calls."""

    def call(self) -> None:
        """Makes it."""


class NoWork:
    """A null call of the CPU."""

    def call(self) -> None:
        """Nothing."""


class Meeting:
    """A null call on GPUs: all ranks' streams meet, the least that a call of a parallel kernel does.

    Handovers of several ranks then cost what the slowest of them takes, as between the calls of parallel kernels.

    Args:
        library: Compiled library of ranks, see `rankside/handover.cu`.
        stream: Address of the stream.
        heap: Heap whose control pages the ranks meet in.
        world_size: Number of ranks.
    """

    def __init__(self, library: ctypes.CDLL, stream: int, heap: AnyHeap, world_size: int) -> None:
        self._enqueue = library.pkb_enqueue_meeting
        self._enqueue.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
        ]
        self._where = stream, heap.segment(0), heap.segment_bytes, heap.rank, world_size
        self._count = 0

    def call(self) -> None:
        """Enqueues the meeting."""
        self._count += 1
        status = self._enqueue(*self._where, self._count)
        if status:
            raise RuntimeError(f"no meeting could be enqueued: CUDA error {status}")


def run_null_calls(calls: int, null_call: NullCall, handover: Handover) -> None:
    """The work of a null block."""
    for _ in range(calls):
        handover.cross()
        null_call.call()
    handover.cross()


class Handovers:
    """The handovers that a rank can make.

    Args:
        waiting: Handover for which the host waits.
        enqueued: Handover that is enqueued on the stream; None on the CPU.
        congestion: Congestion of the rank between them.

    Attributes:
        congestion: Congestion of the rank between them.
    """

    def __init__(
        self, waiting: WaitingHandover, enqueued: EnqueuedHandover | None, congestion: Congestion | None = None
    ) -> None:
        self._waiting, self._enqueued = waiting, enqueued
        self.congestion = congestion or NoCongestion()

    def of(self, kind: HandoverKind, pad_ns: int) -> Handover:
        """The handover of a kind; see `EnqueuedHandover` for the padding."""
        if kind == "none":
            return NoHandover()
        if kind == "waiting":
            return self._waiting
        assert self._enqueued is not None, "handovers are enqueued on GPUs"
        self._enqueued.pad_ns = pad_ns
        return self._enqueued


def make_handovers(device: Device, heap: AnyHeap, world_size: int, fds: list[int]) -> tuple[Handovers, NullCall]:
    """The handovers of a rank, and the null calls that their cost is measured with.

    Args:
        device: Device of the rank.
        heap: Heap whose lines are handed over.
        world_size: Number of ranks.
        fds: The two eventfds; on GPUs the library too.
    """
    waiting = WaitingHandover(device, fds[0], fds[1])
    if device.name == "cpu":
        return Handovers(waiting, None), NoWork()
    library, stream = ctypes.CDLL(f"/proc/self/fd/{fds[2]}"), device.stream or 0
    enqueued = EnqueuedHandover(library, stream, heap.mailbox, heap.segment(heap.rank))
    meeting = Meeting(library, stream, heap, world_size)
    os.close(fds[2])
    return Handovers(waiting, enqueued, GpuCongestion(library, stream, heap)), meeting
