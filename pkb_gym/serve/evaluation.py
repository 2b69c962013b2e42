"""An evaluation of the service, and the evaluators that a service can own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pkb_gym.engine.errors import EvaluationNotFound
from pkb_gym.engine.evaluators.evaluator import KeyedEvaluator
from pkb_gym.engine.evaluators.queue.entry import Entry
from pkb_gym.engine.evaluators.queue.events import QueueEvent
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder


class OwningEvaluator(KeyedEvaluator, Protocol):
    """An evaluator that owns devices, and can leave them to another program for a while."""

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        """The configuration that `evaluate` would run under.

        Raises:
            ConfigError, SizeError: It cannot be met.
        """

    def pause(self, timeout_s: float | None = None) -> bool:
        """Lets nothing begin on the devices until `resume`; returns whether nothing runs there any more."""

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""


@dataclass(eq=False, kw_only=True)
class Evaluation(Entry[Feedback]):
    """One request of the service, which equal ones join.

    Attributes:
        problem: Problem of the request.
        source: Source text of the request.
        config: Configuration as it was requested, on the device of the service.
        resolved: Configuration with every field decided.
        replay_key: Key of the inputs that the request brings; None for the key of the service.
        evaluator: Evaluator that judges it; None before it begins.
    """

    problem: Problem
    source: str
    config: EvalConfig
    resolved: ResolvedConfig
    replay_key: bytes | None = None
    evaluator: OwningEvaluator | None = None

    def lost(self, why: str) -> Feedback:
        """Its feedback where an infrastructure failure ends it."""
        environment = execution_environment.describe(self.resolved.device, self.resolved.dialect)
        source = Source.parse(self.source, self.resolved.device, self.resolved.language)
        feedback = FeedbackBuilder(self.problem, source, self.resolved, environment)
        feedback.fail(Failure.INFRASTRUCTURE, f"this machine could not judge it: {why}")
        return feedback.build()


ServiceEvent: TypeAlias = QueueEvent[Evaluation, Feedback]
"""An event of the service's queue."""


def verdict(event: ServiceEvent) -> str:
    """The result of a finished evaluation in one word: `passed`, a failure, `given_up` or `refused`."""
    if isinstance(event.answer, Feedback):
        return "passed" if event.answer.failure is None else event.answer.failure.value
    return "given_up" if isinstance(event.answer, EvaluationNotFound) else "refused"
