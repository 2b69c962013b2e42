"""Counts of a service since it was started."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable

from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.service import QUEUED, ServiceStatus
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.serve.evaluation import HAS_DEVICES

MINUTE_S = 60.0


class Statistics:
    """Counts; the service's lock guards them.

    Attributes:
        joined, refused, restarts: see `ServiceStatus`.
    """

    def __init__(self) -> None:
        self.joined = self.refused = self.restarts = 0
        self._began = time.monotonic()
        self._finished = self._faults = 0
        self._durations_s: Counter[str] = Counter()
        self._recent: deque[float] = deque()

    def finish(self, feedback: Feedback | None) -> None:
        """Counts an evaluation that ended; None stands for a request that the evaluator refused."""
        self._finished += 1
        self._recent.append(time.monotonic())
        self._forget()
        if feedback is not None:
            self._faults += feedback.failure is Failure.INFRASTRUCTURE
            self._durations_s.update(feedback.durations_s)

    def status(self, states: Iterable[str], *, paused: bool) -> ServiceStatus:
        """The record.

        Args:
            states: of the evaluations that have not finished.
            paused: whether the devices are left to another program.
        """
        self._forget()
        now = list(states)
        queued, waiting = now.count(QUEUED), now.count(WAITING)
        running = sum(state in HAS_DEVICES for state in now)
        return ServiceStatus(
            queued=queued,
            compiling=len(now) - queued - waiting - running,
            waiting=waiting,
            running=running,
            finished=self._finished,
            joined=self.joined,
            refused=self.refused,
            infrastructure_faults=self._faults,
            restarts=self.restarts,
            evaluations_per_minute=len(self._recent),
            durations_s=dict(self._durations_s),
            paused=paused,
            uptime_s=time.monotonic() - self._began,
        )

    def _forget(self) -> None:
        while self._recent and self._recent[0] < time.monotonic() - MINUTE_S:
            self._recent.popleft()
