"""Gangs that stand by: prepared ahead, so that an evaluation does not wait for contexts and process groups."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.stages.machine_sharing import beside_others_at_once, work_beside_others

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause of the refilling in seconds after a gang could not be prepared."""

PUT_OFF_S = 0.1
"""Pause in seconds where another evaluator of the machine measures."""


class Standby:
    """A stock of prepared gangs of one kind, refilled in the background once half of them are left.

    Preparing touches the devices, so that it never runs beside a timing: one gang after the other, as the driver makes
    contexts one at a time anyway. A timing that waits goes first and waits for one gang at most, which is begun before
    its candidate or together with it: the candidate is checked meanwhile. Nor is one prepared beside a timing of
    another evaluator of this machine, which may have the same GPUs.

    Args:
        start: Forks and prepares one gang.
        arbiter: Keeps preparing and timing apart.
        size: Number of gangs that are kept; with 0, each is made when it is taken.
    """

    def __init__(self, start: Callable[[], CandidateGang], arbiter: DeviceArbiter, size: int) -> None:
        self._start, self._arbiter, self._size = start, arbiter, size
        self._gangs: list[CandidateGang] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._refill, name="pkb-standby", daemon=True)
        self._thread.start()

    def take(self) -> CandidateGang:
        """A prepared gang, which is the caller's from now on; made at once if none stands by.

        Raises:
            InfrastructureError: None could be prepared.
        """
        while (gang := self._pop()) is not None:
            if gang.is_whole:
                return gang
            gang.close()  # a rank has ended meanwhile, which must not be held against a candidate
        with work_beside_others(lambda _: None), self._arbiter.preparing():
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
        self._arbiter.look_again()

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
                self._changed.wait_for(lambda: self._closed or self._is_half_empty())
            while self._is_short():
                self._prepare_one()
            if self._closed:
                return

    def _is_half_empty(self) -> bool:
        return self._is_short() and len(self._gangs) <= self._size // 2

    def _is_short(self) -> bool:
        with self._changed:
            return not self._closed and len(self._gangs) < self._size

    def _prepare_one(self) -> None:
        """Adds a gang; if none could be prepared, or another evaluator measures, rests for a while."""
        try:
            with self._arbiter.preparing_ahead(self._is_short) as begins, beside_others_at_once() as is_quiet:
                if not begins:  # it was closed meanwhile
                    return
                gang = self._start() if is_quiet else None
        except Exception as error:  # noqa: BLE001 - of any kind, it must not end the refilling
            with self._changed:  # the next evaluation starts one itself, and gets its error
                if not self._closed:
                    logger.warning("no gang could be prepared to stand by: %s", error)
                    self._changed.wait_for(lambda: self._closed, timeout=RETRY_S)
            return
        with self._changed:
            if gang is not None:
                self._gangs.append(gang)
            elif not self._closed:
                self._changed.wait_for(lambda: self._closed, timeout=PUT_OFF_S)
