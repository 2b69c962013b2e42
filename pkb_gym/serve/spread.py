"""Requests are spread over several evaluators of one node, each with devices of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import WAITING, Progress

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
        if progress is not None and not self._has_room():
            progress(WAITING)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room())
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

    def _has_room(self) -> bool:
        return min(self._in_hand) < self._most_in_hand

    def close(self) -> None:
        """Closes all; requests that still wait are not evaluated."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for evaluator in self._evaluators:
            evaluator.close()
