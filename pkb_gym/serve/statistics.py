"""Counts of a service since it was started."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable

from pkb_gym.engine.evaluators.queue.events import Counts
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.service import QUEUED, ServiceStatus
from pkb_gym.engine.stages.progress import BUILDING, PREPARING, WAITING

MINUTE_S = 60.0
HAS_DEVICES = frozenset({PREPARING, BUILDING, Stage.RUN, Stage.CHECK, Stage.TIME, Stage.PROFILE})


class Statistics:
    """Sums over the answers of a service; safe in several threads.

    Attributes:
        restarts: Evaluators that were replaced.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._began_s = time.monotonic()
        self._faults = 0
        self._durations_s: Counter[str] = Counter()
        self._recent: deque[float] = deque()
        self._lock = threading.Lock()

    def finished(self, answer: object) -> None:
        """Counts the answer of an evaluation: its feedback, or an error."""
        with self._lock:
            self._recent.append(time.monotonic())
            self._forget()
            if isinstance(answer, Feedback):
                self._faults += answer.failure is Failure.INFRASTRUCTURE
                self._durations_s.update(answer.durations_s)

    def status(self, counts: Counts, states: Iterable[str], *, paused: bool) -> ServiceStatus:
        """The state of the service.

        Args:
            counts: Counts of the queue.
            states: States of the evaluations that have not finished.
            paused: Whether the devices are left to another program.
        """
        now = list(states)
        queued, waiting = now.count(QUEUED), now.count(WAITING)
        running = sum(state in HAS_DEVICES for state in now)
        with self._lock:
            self._forget()
            return ServiceStatus(
                queued=queued,
                compiling=len(now) - queued - waiting - running,
                waiting=waiting,
                running=running,
                finished=counts.finished,
                joined=counts.joined,
                refused=counts.refused,
                infrastructure_faults=self._faults,
                restarts=self.restarts,
                evaluations_per_minute=len(self._recent),
                durations_s=dict(self._durations_s),
                paused=paused,
                uptime_s=time.monotonic() - self._began_s,
            )

    def _forget(self) -> None:
        while self._recent and self._recent[0] < time.monotonic() - MINUTE_S:
            self._recent.popleft()
