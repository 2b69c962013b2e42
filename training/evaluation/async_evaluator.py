"""Evaluates the sources of many rollouts side by side: equal requests once, and none for longer than its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.engine.evaluators.caching import CachingEvaluator
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback

logger = logging.getLogger(__name__)

Fault: TypeAlias = Literal["infrastructure", "crashed", "late"]
"""The kind of the evaluator's failure: by its feedback, by an exception, or by a missed deadline."""

MAX_THREADS = 256
"""They wait for the evaluator and compute nothing."""


@dataclass(frozen=True)
class Verdict:
    """The result of evaluating one source.

    Attributes:
        feedback: Feedback of the evaluation; None where it crashed or was late.
        fault: Description of the evaluator's fault; None for no fault.
        waited_s: Time from request to answer, in seconds.
        is_duplicate: Whether the answer is that of an earlier equal request of this process.
    """

    feedback: Feedback | None
    fault: Fault | None
    waited_s: float
    is_duplicate: bool


class AsyncEvaluator:
    """Asks an evaluator without ever raising or hanging itself; used by all rollouts of a process.

    Args:
        evaluator: Evaluator that is safe to call from several threads.
        deadline_s: Maximum wait for one evaluation in seconds, after which it counts as a fault.
    """

    def __init__(self, evaluator: Evaluator, deadline_s: float = 600.0) -> None:
        if deadline_s <= 0:
            raise ValueError(f"deadline_s must be positive, got {deadline_s}")
        self._cache = CachingEvaluator(evaluator)
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="pkb-evaluate")
        self._answered: weakref.WeakSet[Future[Feedback]] = weakref.WeakSet()

    def prefetch(self, problem: Problem, source: str, config: EvalConfig) -> None:
        """Begins an evaluation that `evaluate` will be asked for; returns at once."""
        self._cache.submit(self._threads, problem, source, config)

    async def evaluate(self, problem: Problem, source: str, config: EvalConfig) -> Verdict:
        """Evaluates one source; never raises on account of the evaluator."""
        began = time.monotonic()
        future = self._cache.submit(self._threads, problem, source, config)
        is_duplicate = future in self._answered
        self._answered.add(future)
        feedback, fault = await self._wait(future, problem)
        return Verdict(feedback, fault, time.monotonic() - began, is_duplicate)

    async def _wait(self, future: Future[Feedback], problem: Problem) -> tuple[Feedback | None, Fault | None]:
        loop, finished = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[Feedback]) -> None:
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop was closed after a deadline
                loop.call_soon_threadsafe(finished.set)

        # A thread cannot be stopped, and others may wait for the same evaluation: only this wait ends.
        future.add_done_callback(wake)
        try:
            await asyncio.wait_for(finished.wait(), self._deadline_s)
            feedback = future.result()
        except TimeoutError:
            logger.warning("%s: no evaluation within %.0f s; it counts for nothing", problem.name, self._deadline_s)
            self._cache.forget(future)
            return None, "late"
        except Exception:  # whatever the evaluator raises, the step goes on
            logger.warning("%s: the evaluator failed; it counts for nothing", problem.name, exc_info=True)
            return None, "crashed"
        if feedback.failure is Failure.INFRASTRUCTURE:
            logger.warning("%s: not judged: %s", problem.name, feedback.message)
            return feedback, "infrastructure"
        return feedback, None

    def close(self) -> None:
        """Waits for nothing; calling it again changes nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
