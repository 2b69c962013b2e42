"""Lanes: candidates whose ranks run beside each other, as far as this machine has room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_GPU_LANES = 2
"""Candidates that are checked at a time on the same GPUs, as on a shared gang of a Ray pool."""


@dataclass(frozen=True)
class Need:
    """The need of one candidate, with its reference gang.

    Attributes:
        processors: Number of processors.
        nbytes: Bytes of the device's memory.
    """

    processors: int
    nbytes: int


class Lanes:
    """Hands out numbers of lanes, the lowest first; safe to use from several threads.

    Whoever has a lane has the processes of that number to itself. Candidates are let in as they come, each beside
    others while all of them together fit, and in any case where nobody else is: one that is large is not kept out by
    many that are small.

    Args:
        processors: Number of processors of this machine.
    """

    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._changed = threading.Condition()
        self._taken: dict[int, Need] = {}
        self._shared: set[int] = set()
        self._waiting: list[object] = []

    def is_free(self, need: Need, nbytes: int, most: int | None = None) -> bool:
        """Whether `taken` would not wait; see there."""
        with self._changed:
            return not self._waiting and self._fits(need, nbytes, most)

    @contextmanager
    def taken(self, need: Need, nbytes: int, most: int | None = None) -> Iterator[int]:
        """Waits for room.

        Args:
            need: Need of the candidate.
            nbytes: Bytes of memory of the device.
            most: Number of candidates at a time, at most; None for any.

        Yields:
            Number of the lane, from 0.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is ticket and self._fits(need, nbytes, most))
                lane = min(set(range(len(self._taken) + 1)) - self._taken.keys())
                self._taken[lane] = need
                if len(self._taken) > 1:
                    self._shared |= self._taken.keys()
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield lane
        finally:
            with self._changed:
                del self._taken[lane]
                self._shared.discard(lane)
                self._changed.notify_all()

    def was_shared(self, lane: int) -> bool:
        """Whether somebody else had a lane at some time since this one, which is taken, was."""
        with self._changed:
            return lane in self._shared

    def wait_until_empty(self) -> None:
        """Returns when no lane is taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)

    def _fits(self, need: Need, nbytes: int, most: int | None) -> bool:
        if not self._taken:
            return True
        together = [*self._taken.values(), need]
        return (
            sum(one.processors for one in together) <= self._processors
            and sum(one.nbytes for one in together) <= nbytes
            and (most is None or len(together) <= most)
        )
