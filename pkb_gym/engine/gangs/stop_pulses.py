"""Stops a rank now and then for about a millisecond, so that others go ahead that do not wait for it."""

from __future__ import annotations

import random
import signal
import threading
from typing import Self

from pkb_gym.engine.support.pidfds import send

PAUSE_S = (50e-6, 500e-6)
STOP_S = (200e-6, 1.2e-3)
MAX_PULSES = 8

LATEST_BEGIN = 0.75
"""Share of the block in which the first stop comes. A rank notices that it has been stopped, and may wait for its peers
from then on: it must not know, at any time before, that this block is one without stops."""


class StopPulses:
    """A context manager in which a process is stopped at random moments; it runs again at the end.

    Args:
        pidfd: Descriptor of the process.
        block_s: Approximate duration of its block in seconds.
    """

    def __init__(self, pidfd: int, block_s: float) -> None:
        self._pidfd, self._block_s = pidfd, block_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pkb-pulses")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        least_s, most_s = PAUSE_S
        pause_s = random.uniform(least_s, max(least_s, LATEST_BEGIN * self._block_s))
        most_s = min(most_s, max(least_s, self._block_s / MAX_PULSES))  # soon after each other in a short block
        for _ in range(MAX_PULSES):
            if self._ended.wait(pause_s):
                return
            send(self._pidfd, signal.SIGSTOP)
            self._ended.wait(random.uniform(*STOP_S))
            send(self._pidfd, signal.SIGCONT)
            pause_s = random.uniform(least_s, most_s)
