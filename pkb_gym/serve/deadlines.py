"""Deadlines of the evaluations that have begun."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from pkb_gym.serve.evaluation import Evaluation

logger = logging.getLogger(__name__)


class DeadlineWatch:
    """A thread that finds the evaluations which have had their time.

    Args:
        lock: of the service.
        begun: the evaluations to watch; the lock guards it.
        deadline_s: what an evaluation may take, see `Evaluation.left_s`.
        unwanted_s: the time that it may still take once no client wants it any more; None for as long as any other.
        end: is called, without the lock, with an evaluation that has had its time, and the reason.
    """

    def __init__(
        self,
        lock: threading.RLock,
        begun: Collection[Evaluation],
        deadline_s: float | None,
        unwanted_s: float | None,
        end: Callable[[Evaluation, str], None],
    ) -> None:
        self._changed = threading.Condition(lock)
        self._begun, self._deadline_s, self._unwanted_s, self._end = begun, deadline_s, unwanted_s, end
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="pkb-deadlines", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Called with the lock held when a clock was started or stopped."""
        self._changed.notify_all()

    def close(self) -> None:
        """Returns when the thread has ended; called without the lock."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                clocks = [(left, each) for each in self._begun if (left := self._left_s(each)) is not None]
                soonest, overdue = min(clocks, key=lambda clock: clock[0], default=(None, None))
                if self._closed:
                    return
                if overdue is None or soonest is None or soonest > 0:
                    self._changed.wait(soonest)
                    continue
                stage = overdue.state
            if overdue.unwanted_since_s is not None or self._deadline_s is None:
                why = f"an evaluation that was given up goes on, at: {stage}"
            else:
                why = f"an evaluation outlasted its {self._deadline_s:g} s, at: {stage}"
            logger.warning("%s; the evaluator is replaced", why)
            self._end(overdue, why)

    def _left_s(self, evaluation: Evaluation) -> float | None:
        return evaluation.left_s(self._deadline_s, self._unwanted_s)
