"""Several evaluation services of one node, each with processors of its own: as many gangs run at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress

MAX_IN_HAND = 3
"""Requests that an evaluator has at a time: one that runs, and others that are compiled meanwhile."""


class SpreadEvaluator:
    """Gives each request to the evaluator that has the fewest in hand, and none to one that has enough.

    A request waits for the first evaluator with room: one that a kernel keeps busy until its deadline would hold up
    those that it had already been given, while others had nothing left.

    Args:
        evaluators: Evaluators, at least one.
        most_in_hand: Maximum number of concurrent requests to an evaluator.
    """

    def __init__(self, evaluators: Sequence[Evaluator], most_in_hand: int = MAX_IN_HAND) -> None:
        self._evaluators = tuple(evaluators)
        self._in_hand = [0] * len(self._evaluators)
        self._most_in_hand = most_in_hand
        self._changed = threading.Condition()
        self._is_closed = False

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Evaluates a source on the evaluator with the fewest requests in hand.

        Raises:
            InfrastructureError: it was closed before an evaluator had room.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or min(self._in_hand) < self._most_in_hand)
            if self._is_closed:
                raise InfrastructureError(f"{problem.name}: the evaluators were closed before one had room")
            at = self._in_hand.index(min(self._in_hand))
            self._in_hand[at] += 1
        try:
            return self._evaluators[at].evaluate(problem, source, config, progress)
        finally:
            with self._changed:
                self._in_hand[at] -= 1
                self._changed.notify()

    def close(self) -> None:
        """Closes all; requests that still wait are not evaluated."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for evaluator in self._evaluators:
            evaluator.close()


def share_out_processors(services: int, available: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Processors of each service: equal shares, from the last on; what is left over is the trainer's.

    Args:
        services: Number of services.
        available: Processors to share out; by default those of this process.

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
