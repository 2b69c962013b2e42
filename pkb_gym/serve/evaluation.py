"""One request on its way through the service."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from pkb_gym.engine.evaluators.evaluator import KeyedEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.service import FINISHED, QUEUED
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.progress import BUILDING, PREPARING, WAITING

HAS_DEVICES = frozenset(
    {PREPARING, BUILDING, Stage.RUN.value, Stage.CHECK.value, Stage.TIME.value, Stage.PROFILE.value}
)


class OwningEvaluator(KeyedEvaluator, Protocol):
    """An evaluator that owns devices, and can leave them to another program for a while."""

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        """The configuration that `evaluate` would run under.

        Raises:
            ConfigError, SizeError: it cannot be met.
        """

    def pause(self, timeout_s: float | None = None) -> bool:
        """Lets nothing begin on the devices until `resume`; returns whether nothing runs there any more."""

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""


@dataclass(eq=False)
class Evaluation:
    """One request; equal ones join it. The service's lock guards what changes.

    Attributes:
        problem, source, config: of the request.
        resolved: what the configuration comes to.
        replay_key: of the request.
        key: of the request under the resolved configuration, see `EvaluationRequest`.
        id: by which clients name it.
        state: `QUEUED`, words of the evaluator, or `FINISHED`.
        interest: requests of each client for it that were not taken back.
        client: whose turn it was when it began; empty before.
        unwanted_since_s: when the last of them gave up, by `time.monotonic`; None while a client wants it.
        evaluator: who judges it; None before it begins.
        requested_at_s: when it was first asked for, by `time.monotonic`.
        answer: the feedback, or a `PkbError` where the evaluator refused the request.
    """

    problem: Problem
    source: str
    config: EvalConfig
    resolved: ResolvedConfig
    replay_key: bytes | None
    key: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = QUEUED
    interest: Counter[str] = field(default_factory=Counter)
    client: str = ""
    unwanted_since_s: float | None = None
    evaluator: OwningEvaluator | None = None
    requested_at_s: float = field(default_factory=time.monotonic)
    answer: Future[Feedback] = field(default_factory=Future)
    _spent_s: float = 0.0
    _since: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a client still wants it."""
        return any(requests > 0 for requests in self.interest.values())

    def enter(self, state: str) -> None:
        """Notes what it is at. Its clock runs while it is neither queued nor waiting for others."""
        now = time.monotonic()
        if self._since is not None:
            self._spent_s += now - self._since
        self._since = None if state in (QUEUED, WAITING, FINISHED) else now
        self.state = state

    def left_s(self, deadline_s: float | None, unwanted_s: float | None = None) -> float | None:
        """The time that its clock may still run; None while it stands, and where there is no limit.

        Args:
            deadline_s: what an evaluation may take; None for as long as it takes.
            unwanted_s: the time that it may still take once no client wants it; None for as long as any.
        """
        if self._since is None:
            return None
        now = time.monotonic()
        left_s = None if deadline_s is None else deadline_s - self._spent_s - (now - self._since)
        if unwanted_s is None or self.unwanted_since_s is None:
            return left_s
        unwanted_left_s = self.unwanted_since_s + unwanted_s - now
        return unwanted_left_s if left_s is None else min(left_s, unwanted_left_s)

    def give(self, answer: Feedback | Exception) -> None:
        """Lets clients have the answer."""
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)

    def lost(self, why: str) -> Feedback:
        """Its feedback where an infrastructure failure ends it."""
        environment = execution_environment.describe(self.resolved.device, self.resolved.dialect)
        source = Source.parse(self.source, self.resolved.device, self.resolved.language)
        feedback = FeedbackBuilder(self.problem, source, self.resolved, environment)
        feedback.fail(Failure.INFRASTRUCTURE, f"this machine could not judge it: {why}")
        return feedback.build()
