"""Compiles what many tests are going to evaluate, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig


def compile_ahead(
    evaluator: LocalEvaluator, work: Iterable[tuple[Problem, str, EvalConfig]], *, threads: int = 2
) -> None:
    """Compiles sources, each as its evaluation would; the tests find them in the evaluator's cache."""

    def compile_one(each: tuple[Problem, str, EvalConfig]) -> None:
        problem, source, config = each
        evaluator.evaluate(problem, source, config.model_copy(update={"until": "compile"}))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compile_one, work))
