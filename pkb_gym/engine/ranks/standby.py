"""Gangs that stand by: prepared ahead, so that an evaluation does not wait for contexts and process groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.candidate_gang import CandidateGang

logger = logging.getLogger(__name__)


class Standby:
    """A stock of prepared gangs of one kind, refilled in the background.

    Preparing touches the devices, so it is done while `quiet` is held, and several gangs are prepared at once: per gang
    that takes the machine for a fraction of the time of one. A timing that waits goes first.

    Args:
        start: forks and prepares one gang.
        quiet: keeps preparing and timing apart.
        size: gangs that are kept.
    """

    def __init__(self, start: Callable[[], CandidateGang], quiet: QuietDevices, size: int) -> None:
        self._start, self._quiet, self._size = start, quiet, size
        self._gangs: list[CandidateGang] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._refill, name="pkb-standby", daemon=True)
        self._thread.start()

    def take(self) -> CandidateGang:
        """A prepared gang, which is the caller's from now on; made at once if none stands by.

        Raises:
            InfrastructureError: none could be prepared.
        """
        with self._changed:
            gang = self._gangs.pop() if self._gangs else None
            self._changed.notify_all()
        if gang is not None:
            return gang
        with self._quiet.preparing():
            return self._start()

    def close(self) -> None:
        """Ends the gangs that stand by."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for gang in self._gangs:
            gang.close()
        self._gangs.clear()

    def _refill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._gangs) <= self._size // 2)
                if self._closed:
                    return
                missing = self._size - len(self._gangs)
            with self._quiet.preparing(), ThreadPoolExecutor(missing) as pool:
                made = [pool.submit(self._start) for _ in range(missing)]
            gangs, failed = [], False
            for future in made:
                try:
                    gangs.append(future.result())
                except InfrastructureError as error:
                    logger.warning("no gang could be prepared to stand by: %s", error)
                    failed = True
            with self._changed:
                self._gangs += gangs
                if failed:  # whoever needs a gang starts one, and hears why it fails
                    self._changed.wait_for(lambda: self._closed, timeout=RETRY_S)


RETRY_S = 5.0


class QuietDevices:
    """Keeps preparing and timing apart: any number of preparations at once, or one timing; timings go first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._timing = 0
        self._waiting = 0
        self._preparing = 0

    def timing(self) -> AbstractContextManager[None]:
        """Waits until no preparation runs, and keeps new ones from beginning."""
        return _Held(self._begin_timing, self._end_timing)

    def preparing(self) -> AbstractContextManager[None]:
        """Waits until nothing is timed or waits to be."""
        return _Held(self._begin_preparing, self._end_preparing)

    def _begin_timing(self) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._preparing and not self._timing)
            self._waiting -= 1
            self._timing += 1

    def _end_timing(self) -> None:
        with self._changed:
            self._timing -= 1
            self._changed.notify_all()

    def _begin_preparing(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._timing and not self._waiting)
            self._preparing += 1

    def _end_preparing(self) -> None:
        with self._changed:
            self._preparing -= 1
            self._changed.notify_all()


class _Held(AbstractContextManager[None]):
    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()
