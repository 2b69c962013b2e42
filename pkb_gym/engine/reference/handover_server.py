"""The compiled server of handovers, which runs in a thread of a reference rank; see `reference/handover_server.cpp`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.reference.handover_script import LINE_BYTES, Script
from pkb_gym.engine.support.eventfds import drain


class _Script(ctypes.Structure):
    """`Script` of reference/handover_server.cpp."""

    _fields_ = [
        ("calls", ctypes.c_int32),
        ("takes_outputs", ctypes.c_int32),
        ("arrival_begin", ctypes.c_void_p),
        ("arrival_lines", ctypes.c_void_p),
        ("withdrawals", ctypes.c_void_p),
        ("arrival_values", ctypes.c_void_p),
        ("poison_begin", ctypes.c_void_p),
        ("poison_lines", ctypes.c_void_p),
        ("receipt_begin", ctypes.c_void_p),
        ("receipt_lines", ctypes.c_void_p),
        ("receipts", ctypes.c_void_p),
        ("delays_us", ctypes.c_void_p),
    ]


class HandoverLibrary:
    """The compiled server.

    Args:
        path: Path of the shared library.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.pkb_serve_on_cpu.restype = ctypes.c_void_p
        self._library.pkb_serve_on_cpu.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int] * 3]
        self._library.pkb_serve_on_gpu.restype = ctypes.c_void_p
        self._library.pkb_serve_on_gpu.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int]
        self._library.pkb_finish_serving.argtypes = [ctypes.c_void_p]
        self._library.pkb_interrupt.argtypes = [ctypes.c_void_p]

    def interrupt(self, raw: object) -> int:
        """Interrupts a call; see `interruptions.Interruptions`.

        Args:
            raw: Address of an `interruptions.InterruptedCall`.

        Returns:
            Number of stops, at least 0.
        """
        return int(self._library.pkb_interrupt(raw))

    def serve_on_cpu(
        self, script: Script, segment: int, request_fd: int, reply_fd: int, rank: int | None = None
    ) -> HandoverServer:
        """Begins to serve a block on the CPU.

        Args:
            script: Script of the block's handovers.
            segment: Address of the rank's segment.
            request_fd: An eventfd that the rank writes to.
            reply_fd: An eventfd that the rank reads.
            rank: The rank's process, whose main thread makes the calls; by default this one, 0 for an unknown one.
        """
        pid = os.getpid() if rank is None else rank
        for fd in (request_fd, reply_fd):
            drain(fd)
        start = self._library.pkb_serve_on_cpu
        return HandoverServer(script, lambda raw: start(raw, segment, request_fd, reply_fd, pid), self._finish)

    def serve_on_gpu(self, script: Script, mailbox: int, first_sequence: int, processor: int) -> HandoverServer:
        """Begins to serve a block on a GPU.

        Args:
            script: Script of the block's handovers.
            mailbox: Address of the rank's mailbox.
            first_sequence: Number of the block's first handover.
            processor: Processor that the server spins on.
        """
        start = self._library.pkb_serve_on_gpu
        return HandoverServer(script, lambda raw: start(raw, mailbox, first_sequence, processor), self._finish)

    def _finish(self, handle: int) -> int:
        return int(self._library.pkb_finish_serving(handle))


class HandoverServer:
    """A running server of one block."""

    def __init__(self, script: Script, start: Callable[[object], int], finish: Callable[[int], int]) -> None:
        self._script, self._finish = script, finish
        self._receipts: NDArray[np.uint8] = np.zeros((len(script.receipts.lines), LINE_BYTES), np.uint8)
        arrays = (
            script.arrivals.begin,
            script.arrivals.lines,
            script.withdrawals,
            script.values,
            script.poisons.begin,
            script.poisons.lines,
            script.receipts.begin,
            script.receipts.lines,
            self._receipts,
            script.delays_us,
        )
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        self._raw = _Script(script.calls, script.takes_outputs, *(array.ctypes.data for array in self._arrays))
        self._handle: int | None = start(ctypes.byref(self._raw))

    def finish(self) -> NDArray[np.uint8] | None:
        """Ends the server.

        Returns:
            The receipts, [lines, LINE_BYTES], in the script's order; None where the block did not end.
        """
        assert self._handle is not None
        served = self._finish(self._handle)
        self._handle = None
        return self._receipts if served == self._script.calls + 1 else None
