"""Gangs that stand by: prepared ahead, so that an evaluation does not wait for contexts and process groups."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

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
        while (gang := self._pop()) is not None:
            if gang.is_whole:
                return gang
            gang.close()  # a rank has ended meanwhile, which must not be held against a candidate
        with self._quiet.preparing():
            return self._start()

    def _pop(self) -> CandidateGang | None:
        with self._changed:
            gang = self._gangs.pop() if self._gangs else None
            self._changed.notify_all()
        return gang

    def close(self) -> None:
        """Ends the gangs that stand by or are being prepared; calling it again changes nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:  # what is taken out here, `take` cannot hand over any more
            gangs, self._gangs = self._gangs, []
        with contextlib.ExitStack() as stack:  # each is ended, even if ending another fails
            for gang in gangs:
                stack.callback(gang.close)

    def _refill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._gangs) <= self._size // 2)
                if self._closed:
                    return
            with self._quiet.preparing():
                errors = self._prepare_missing()
            with self._changed:
                if errors and not self._closed:  # whoever needs a gang starts one, and hears why it fails
                    logger.warning("no gang could be prepared to stand by: %s", errors[0])
                    self._changed.wait_for(lambda: self._closed, timeout=RETRY_S)

    def _prepare_missing(self) -> list[Exception]:
        """Prepares all gangs that are missing, at once; returns why some could not be."""
        errors: list[Exception] = []
        with self._changed:  # a timing may have been waited for, and meanwhile it was closed
            missing = 0 if self._closed else self._size - len(self._gangs)
        # Threads of our own: a pool would refuse work when the interpreter ends, before evaluators are closed.
        threads = [threading.Thread(target=self._prepare_one, args=(errors,), daemon=True) for _ in range(missing)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def _prepare_one(self, errors: list[Exception]) -> None:
        try:
            gang = self._start()
        except Exception as error:  # noqa: BLE001 - of any kind, it must not end the refilling
            errors.append(error)
            return
        with self._changed:
            self._gangs.append(gang)


RETRY_S = 5.0
"""How long refilling rests after a gang could not be prepared."""


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
            try:
                self._changed.wait_for(lambda: not self._preparing and not self._timing)
                self._timing += 1
            finally:  # Ctrl-C while waiting must not keep preparations out for good
                self._waiting -= 1
                self._changed.notify_all()

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
