"""The evaluator of one episode: it answers from the record what was judged before, and measures the others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress


class EpisodeEvaluator:
    """Stands between an environment and the evaluator that all episodes share.

    Args:
        evaluator: that judges.
        earlier: number of a submission -> what was found of it before.

    Attributes:
        duration_s: wall time of the last evaluation in seconds; None where the feedback is an earlier one.
    """

    def __init__(self, evaluator: Evaluator, earlier: Mapping[int, Feedback]) -> None:
        self._evaluator, self._earlier = evaluator, earlier
        self.duration_s: float | None = None

    def __deepcopy__(self, _: object) -> Self:
        """Gymnasium copies an environment's arguments; there is one evaluator."""
        return self

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """See `Evaluator.evaluate`."""
        self.duration_s = None
        if (earlier := self._earlier.get(config.turn)) is not None:
            return earlier
        began = time.monotonic()
        try:
            return self._evaluator.evaluate(problem, source, config, progress)
        finally:
            self.duration_s = time.monotonic() - began

    def close(self) -> None:
        """The shared evaluator stays."""
