"""Stops a rank now and then for about a millisecond, so that others go ahead that do not wait for it."""

from __future__ import annotations

import random
import signal
import threading
from typing import Self

from pkb_gym.engine.ranks.pidfds import send

PAUSE_S = (50e-6, 500e-6)
STOP_S = (200e-6, 1.2e-3)
MOST_PULSES = 8


class StopPulses:
    """A context manager in which a process is stopped at random moments; it runs again at the end.

    Args:
        pidfd: of the process.
    """

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pkb-pulses")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        for _ in range(MOST_PULSES):
            if self._ended.wait(random.uniform(*PAUSE_S)):
                return
            send(self._pidfd, signal.SIGSTOP)
            self._ended.wait(random.uniform(*STOP_S))
            send(self._pidfd, signal.SIGCONT)
