"""Interruptions of a candidate's rank: in some calls it runs for microseconds at a time, and is stopped in between.

A peer that departs without waiting for the rank does so between any two instructions of its host, and calls of a few
microseconds, or the pauses between the operations that they enqueue on a GPU, are met as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import random
import signal
from collections.abc import Callable, Iterator

from pkb_gym.engine.reference.call_progress import CallProgress
from pkb_gym.engine.support.pidfds import pid_of, send

RUNS = 10
"""Times that a rank runs in a call before it is left alone, at most."""

MIN_RUN_S = 8e-6
"""Shortest time that a rank runs, in seconds; short times are drawn as often as long ones (log-uniform)."""

TRUSTED, MAX_START_S = 0.7, 0.3e-3
"""Share of the calls in which a rank is not stopped before it reports to be in the call, which need not be true, and
time in seconds after which it is stopped all the same."""

MIN_STOP_S, MAX_STOP_S = 0.3e-3, 1e-3
"""Length of a stop, in seconds: the longer one where other ranks finish the call meanwhile."""

AHEAD_S = 1e-3
"""Time in seconds for which a rank stands still once all others have finished the call: they are in the next one."""

MAX_INTERRUPTED_S = RUNS * (MAX_STOP_S + 1e-3)
"""Time in seconds that the interruptions of a call take, roughly at most, beside the time that the rank runs."""


class InterruptedCall(ctypes.Structure):
    """`InterruptedCall` of reference/interruptions.cpp."""

    _fields_ = [
        ("pidfd", ctypes.c_int32),
        ("pid", ctypes.c_int32),
        ("request_fd", ctypes.c_int32),
        ("order_fd", ctypes.c_int32),
        ("runs", ctypes.c_int32),
        ("runs_ns", ctypes.c_void_p),
        ("min_stop_ns", ctypes.c_int64),
        ("max_stop_ns", ctypes.c_int64),
        ("ahead_ns", ctypes.c_int64),
        ("others", ctypes.c_int32),
        ("reached", ctypes.c_void_p),
        ("finished", ctypes.c_uint64),
        ("place", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
        ("max_start_ns", ctypes.c_int64),
    ]


class Interruptions:
    """Interrupts calls of one rank.

    Args:
        library_interrupt: `HandoverLibrary.interrupt`.
        pidfd: Process descriptor of the rank.
    """

    def __init__(self, library_interrupt: Callable[[object], int], pidfd: int) -> None:
        self._interrupt, self._pidfd = library_interrupt, pidfd

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Has the rank stopped from here on; it runs at the end."""
        send(self._pidfd, signal.SIGSTOP)
        try:
            yield
        finally:
            send(self._pidfd, signal.SIGCONT)

    def interrupt(self, run_s: float, progress: CallProgress, call: int, fds: tuple[int, int]) -> int:
        """Lets a stopped rank make its call, a little at a time.

        Args:
            run_s: Longest time in seconds that it runs until it is stopped.
            progress: Progress of all ranks.
            call: Number of the call within the block.
            fds: The eventfd that the rank writes to when it has finished the call, and the connection to the
                evaluator; one of them readable ends the interruptions.

        Returns:
            Number of stops.
        """
        runs_ns = (ctypes.c_int64 * RUNS)(*(int(_draw_run_s(run_s) * 1e9) for _ in range(RUNS)))
        words = progress.words_of_others()
        reached = (ctypes.c_void_p * len(words))(*words)
        order = InterruptedCall(
            self._pidfd,
            pid_of(self._pidfd) or 0,
            *fds,
            RUNS,
            ctypes.addressof(runs_ns),
            *(int(seconds * 1e9) for seconds in (MIN_STOP_S, MAX_STOP_S, AHEAD_S)),
            len(words),
            ctypes.addressof(reached),
            call + 2,  # as `CallProgress.reach` notes it
            progress.place_word() if random.random() < TRUSTED else None,
            call,
            int(MAX_START_S * 1e9),
        )
        return self._interrupt(ctypes.byref(order))


def _draw_run_s(longest_s: float) -> float:
    return math.exp(random.uniform(math.log(MIN_RUN_S), math.log(max(MIN_RUN_S, longest_s))))
