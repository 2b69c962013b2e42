"""Several evaluation services of one node, each with processors of its own: as many gangs run at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress


class SpreadEvaluator:
    """Gives each request to the evaluator that has the fewest in hand.

    Args:
        evaluators: at least one.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)
        self._in_hand = [0] * len(self._evaluators)
        self._lock = threading.Lock()

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """See `Evaluator.evaluate`."""
        with self._lock:
            at = self._in_hand.index(min(self._in_hand))
            self._in_hand[at] += 1
        try:
            return self._evaluators[at].evaluate(problem, source, config, progress)
        finally:
            with self._lock:
                self._in_hand[at] -= 1

    def close(self) -> None:
        """Closes all."""
        for evaluator in self._evaluators:
            evaluator.close()


def share_out_processors(services: int, available: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Processors of each service: equal shares, from the last on; what is left over is the trainer's.

    Args:
        services: how many.
        available: processors; by default those of this process.

    Raises:
        ConfigError: there are fewer processors than services.

    Example:
        >>> share_out_processors(2, [0, 1, 2, 3, 4])
        [(1, 2), (3, 4)]
    """
    processors = sorted(os.sched_getaffinity(0)) if available is None else list(available)
    each = len(processors) // services
    if each == 0:
        raise ConfigError(f"{services} evaluation services need a processor each; there are {len(processors)}")
    mine = processors[len(processors) - services * each :]
    return [tuple(mine[at * each : (at + 1) * each]) for at in range(services)]
