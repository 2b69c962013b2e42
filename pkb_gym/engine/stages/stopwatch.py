"""Divides the wall time of an evaluation among names, so that no stretch of it is without one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

OTHER = "other"
"""The rest of the time: reading the request, describing the machine, building the record."""

ENDING = "ending ranks"

CAPTURING = "capturing the baseline"
"""The baseline as CUDA graphs, after the last stage."""


class Stopwatch:
    """Runs from the moment it is made; at each moment exactly one name is charged.

    Args:
        clock: Monotonic clock in seconds.

    Example:
        >>> ticks = iter([0.0, 1.0, 5.0, 6.0])
        >>> watch = Stopwatch(lambda: next(ticks))
        >>> with watch.phase("compile"):
        ...     pass
        >>> watch.readings()
        {'other': 2.0, 'compile': 4.0}
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = OTHER
        self._since = clock()
        self._seconds: dict[str, float] = {OTHER: 0.0}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charges `name` in place of the phase around it."""
        outer = self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def readings(self) -> dict[str, float]:
        """Seconds of each name so far; their sum is the time since the stopwatch was made."""
        self._switch(self._name)
        return dict(self._seconds)

    def _switch(self, name: str) -> str:
        """Charges the time since the last switch to the present name; returns that name."""
        now, present = self._clock(), self._name
        self._seconds[present] = self._seconds.get(present, 0.0) + now - self._since
        self._name, self._since = name, now
        return present
