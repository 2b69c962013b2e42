"""The seam between those who submit sources and those who judge them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.engine.stages.progress import Progress


@runtime_checkable
class Evaluator(Protocol):
    """Judges sources; safe to call from several threads."""

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Judges one source.

        Args:
            problem: Problem that the source is to solve.
            source: Text of the kernel.
            config: Requested configuration.
            progress: Function called with each stage as it begins.

        Returns:
            The feedback. A failure of the candidate is part of it, and so is an infrastructure failure.

        Raises:
            ConfigError, SizeError: The request makes no sense here.
        """

    def close(self) -> None:
        """Ends every process; calling it again changes nothing."""


@runtime_checkable
class DescribedEvaluator(Evaluator, Protocol):
    """An evaluator that judges on another machine and describes it; all other evaluators judge on this one."""

    def machine(self) -> Machine:
        """The machine that judges.

        Raises:
            ConfigError: The evaluator cannot describe it, since it is of another version.
            InfrastructureError: It cannot be reached.
        """


class KeyedEvaluator(Evaluator, Protocol):
    """An evaluator that takes the key of the inputs with each request."""

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        """Judges one source; see `Evaluator.evaluate`. The inputs follow from `replay_key` where there is one."""


def machine_of(evaluator: Evaluator) -> Machine:
    """The machine that an evaluator judges on; see `DescribedEvaluator.machine`."""
    return evaluator.machine() if isinstance(evaluator, DescribedEvaluator) else this_machine()
