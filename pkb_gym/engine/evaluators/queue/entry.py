"""One evaluation in a queue."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.evaluators.queue.listeners import Listeners
from pkb_gym.engine.records.service import FINISHED, QUEUED
from pkb_gym.engine.stages.progress import WAITING

AnswerT = TypeVar("AnswerT")


@dataclass(eq=False, kw_only=True)
class Entry(Generic[AnswerT]):
    """An evaluation, which equal requests join; the queue's lock guards what changes.

    Attributes:
        key: Digest of the request, equal for equal requests.
        id: Name of the evaluation for its clients.
        joinable: Whether equal requests are answered by this evaluation.
        state: `QUEUED`, the present stage in a few words, or `FINISHED`.
        interest: Requests of each client that were not taken back; 0 for a client that took back all.
        client: Client in whose turn the evaluation began; empty before.
        priority: Highest priority of its requests; higher ones begin first.
        expires_s: Latest deadline of its requests, by `time.monotonic`.
        requested_at_s: Time of the first request, by `time.monotonic`.
        unwanted_since_s: Time when the last client gave up, by `time.monotonic`; None while a client wants it.
        answer: The answer, or the error in its place; None before.
        changed: Notified at each new state and at the answer.
    """

    key: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    joinable: bool = True
    state: str = QUEUED
    interest: Counter[str] = field(default_factory=Counter)
    client: str = ""
    priority: int = 0
    expires_s: float = -math.inf
    requested_at_s: float = field(default_factory=time.monotonic)
    unwanted_since_s: float | None = None
    answer: AnswerT | PkbError | None = None
    changed: Listeners = field(default_factory=Listeners)
    _spent_s: float = 0.0
    _since_s: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a client still wants the evaluation."""
        return any(requests > 0 for requests in self.interest.values())

    def want(self, client: str, priority: int, timeout_s: float) -> None:
        """Adds a request of a client, which waits for that many seconds."""
        self.interest[client] += 1
        self.priority = max(self.priority, priority)
        self.expires_s = max(self.expires_s, time.monotonic() + timeout_s)

    def enter(self, state: str) -> None:
        """Sets the state. Its clock runs while it is neither queued nor waiting for others nor finished."""
        now = time.monotonic()
        if self._since_s is not None:
            self._spent_s += now - self._since_s
        self._since_s = None if state in (QUEUED, WAITING, FINISHED) else now
        self.state = state
        self.changed.notify()

    def left_s(self, deadline_s: float | None, unwanted_s: float | None) -> float | None:
        """Seconds that its clock may still run; None while the clock stands, and without a limit.

        Args:
            deadline_s: Limit of the clock in seconds; None for no limit.
            unwanted_s: Limit in seconds from the moment when the last client gave up; None for no limit.
        """
        if self._since_s is None:
            return None
        now, left_s = time.monotonic(), math.inf
        if deadline_s is not None:
            left_s = deadline_s - self._spent_s - (now - self._since_s)
        if unwanted_s is not None and self.unwanted_since_s is not None:
            left_s = min(left_s, self.unwanted_since_s + unwanted_s - now)
        return None if left_s == math.inf else left_s

    def give(self, answer: AnswerT | PkbError) -> None:
        """Hands the answer to the clients that wait."""
        self.answer = answer
        self.changed.notify()
