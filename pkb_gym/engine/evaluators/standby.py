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
    """A stock of prepared gangs of one kind, refilled in the background once half of them are left.

    Preparing touches the devices, so it is done while `quiet` is held: one gang after the other, as the driver makes
    contexts one at a time anyway, and a timing that waits goes first and waits for one gang at most.

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

    def stop(self) -> None:
        """Prepares no more, and waits for nothing: what is being prepared may fail now, which is no news."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the gangs that stand by or are being prepared; calling it again changes nothing."""
        self.stop()
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
            while self._is_short():
                self._prepare_one()
            if self._closed:
                return

    def _is_short(self) -> bool:
        with self._changed:
            return not self._closed and len(self._gangs) < self._size

    def _prepare_one(self) -> None:
        """Adds a gang; if none could be prepared, rests for a while."""
        try:
            with self._quiet.preparing():
                if not self._is_short():  # a timing was waited for, and meanwhile it was closed
                    return
                gang = self._start()
        except Exception as error:  # noqa: BLE001 - of any kind, it must not end the refilling
            with self._changed:  # whoever needs a gang starts one, and hears why it fails
                if not self._closed:
                    logger.warning("no gang could be prepared to stand by: %s", error)
                    self._changed.wait_for(lambda: self._closed, timeout=RETRY_S)
            return
        with self._changed:
            self._gangs.append(gang)


RETRY_S = 5.0
"""How long refilling rests after a gang could not be prepared."""


class QuietDevices:
    """Keeps preparing and timing apart: any number of preparations at once, or one timing; timings go first.

    While paused, no preparation begins at all, so that somebody else may have the devices.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._timing = 0
        self._waiting = 0
        self._preparing = 0
        self._paused = False

    def pause(self, timeout_s: float | None = None) -> bool:
        """Keeps preparations from beginning until `resume`, and waits for those that have begun.

        Args:
            timeout_s: how long to wait; None for as long as it takes.

        Returns:
            Whether none runs any more.
        """
        with self._changed:
            self._paused = True
            return self._changed.wait_for(lambda: not self._preparing, timeout_s)

    def resume(self) -> None:
        """Lets preparations begin; calling it again changes nothing."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

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
            self._changed.wait_for(lambda: not self._timing and not self._waiting and not self._paused)
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
