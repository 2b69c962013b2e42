"""Sources are compiled on processors of their own, by a service without a GPU, before another service judges them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress

logger = logging.getLogger(__name__)


class CompileFarm:
    """Has native CUDA sources compiled by one evaluator, and judged by another, which finds them in their cache.

    So compilers take no processor from the ranks that are timed. A farm that fails costs time and nothing else: the
    judge compiles what it does not find.

    Args:
        compiler: Evaluator that compiles, into the judge's folder of compiled sources.
        judge: Evaluator that gives the answer.
    """

    def __init__(self, compiler: Evaluator, judge: Evaluator) -> None:
        self._compiler, self._judge = compiler, judge

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Evaluates a source, compiled ahead by another evaluator."""
        if config.language == "cuda":
            try:
                self._compiler.evaluate(problem, source, config.model_copy(update={"until": "compile"}))
            except InfrastructureError:
                logger.warning("%s: the compile farm failed; the judge compiles", problem.name, exc_info=True)
        return self._judge.evaluate(problem, source, config, progress)

    def close(self) -> None:
        """Closes both; calling it again changes nothing."""
        self._compiler.close()
        self._judge.close()


def processors_apart(compilers: int, available: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The processors of the judge's ranks, and those of compilers, which are the last ones.

    Args:
        compilers: Number of compiling evaluators.
        available: Processors of this process.

    Raises:
        ConfigError: none is left for ranks.

    Example:
        >>> processors_apart(2, [0, 1, 2, 3, 4])
        ((0, 1, 2), (3, 4))
    """
    if not 0 < compilers < len(available):
        raise ConfigError(
            f"{compilers} processors for compilers leave none for ranks, or are none themselves; this process has "
            f"{len(available)}"
        )
    return tuple(available[:-compilers]), tuple(available[-compilers:])
