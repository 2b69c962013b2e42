"""Deadlines of the evaluations that have begun."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic

from pkb_gym.engine.evaluators.queue.evaluation_queue import EvaluationQueue
from pkb_gym.engine.evaluators.queue.events import EntryT

logger = logging.getLogger(__name__)


class DeadlineWatch(Generic[EntryT]):
    """A thread that ends the evaluations of a queue whose time is over.

    Args:
        queue: The queue.
        deadline_s: Seconds that the clock of an evaluation may run, see `Entry.left_s`; None for no limit.
        unwanted_s: Seconds that an evaluation may take after its last client gave up; None for no limit.
        end: Function called without the queue's lock, with an evaluation whose time is over and the reason.
    """

    def __init__(
        self,
        queue: EvaluationQueue[EntryT, Any],
        deadline_s: float | None,
        unwanted_s: float | None,
        end: Callable[[EntryT, str], None],
    ) -> None:
        self._queue, self._deadline_s, self._unwanted_s, self._end = queue, deadline_s, unwanted_s, end
        self._thread = threading.Thread(target=self._watch, name="pkb-deadlines", daemon=True)
        self._thread.start()

    def wait_closed(self) -> None:
        """Returns when the thread has ended, after the queue was closed."""
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._queue.changed:
                clocks = [(left_s, each) for each in self._queue.begun() if (left_s := self._left_s(each)) is not None]
                soonest_s, overdue = min(clocks, key=lambda clock: clock[0], default=(None, None))
                if self._queue.is_closed:
                    return
                if overdue is None or soonest_s is None or soonest_s > 0:
                    self._queue.changed.wait(soonest_s)
                    continue
                stage = overdue.state
            if overdue.unwanted_since_s is not None or self._deadline_s is None:
                why = f"an evaluation that was given up goes on, at: {stage}"
            else:
                why = f"an evaluation outlasted its {self._deadline_s:g} s, at: {stage}"
            logger.warning("%s; the evaluator is replaced", why)
            self._end(overdue, why)

    def _left_s(self, entry: EntryT) -> float | None:
        return entry.left_s(self._deadline_s, self._unwanted_s)
