"""Has many sources evaluated, several at a time, and keeps what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.errors import InfrastructureError, StoreError
from pkb_gym.engine.evaluators.caching import CachingEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem


@dataclass(frozen=True)
class TimeLimits:
    """Limits of each evaluation, beside those of the task.

    Attributes:
        timing_budget_s: Time after which timing ends, in seconds.
        timeout_s: Deadline of each block of calls, in seconds.
    """

    timing_budget_s: float = 0.3
    timeout_s: float = 10.0


@dataclass(frozen=True)
class Candidate:
    """A source that solves a task, or tries to.

    Attributes:
        task: Task that the source answers.
        source: Text of the kernel.
    """

    task: Task
    source: str

    def request(self, limits: TimeLimits) -> tuple[Problem, str, EvalConfig]:
        """Arguments of `Evaluator.evaluate`: as far as timing, and always of turn 0, so that equal requests are one."""
        config = self.task.config(
            until="time", timing_budget_s=limits.timing_budget_s, timeout_s=limits.timeout_s, turn=0
        )
        return find_problem(self.task.problem), self.source, config


class BatchEvaluator:
    """Evaluates batches of candidates on several threads, until a deadline.

    Args:
        evaluator: Evaluator with the store of earlier results.
        limits: Time limits of the evaluations.
        jobs: Evaluations at a time, at least 1: compiles run side by side, timing takes turns.
        deadline: `time.monotonic()` after which nothing new is begun; None for no end.
        report: Function that is called with every new result.
    """

    def __init__(
        self,
        evaluator: CachingEvaluator,
        limits: TimeLimits,
        *,
        jobs: int,
        deadline: float | None = None,
        report: Callable[[Candidate, Feedback], None] = lambda _candidate, _feedback: None,
    ) -> None:
        self._evaluator = evaluator
        self._limits = limits
        self._jobs = jobs
        self._deadline = deadline
        self._report = report
        self.faults = 0
        """Candidates that this machine could not evaluate."""
        self.left = 0
        """Candidates that were not begun before the deadline."""

    def evaluate(self, candidates: Iterable[Candidate]) -> dict[Candidate, Feedback]:
        """Feedback on each candidate that could be evaluated; equal ones are evaluated once.

        Raises:
            ConfigError, SizeError: a candidate's task makes no sense.
            StoreError: what was found cannot be kept.
        """
        found: dict[Candidate, Feedback] = {}
        new: list[Candidate] = []
        for candidate in dict.fromkeys(candidates):
            recalled = self._evaluator.recall(*candidate.request(self._limits))
            if recalled is None:
                new.append(candidate)
            else:
                found[candidate] = recalled
        pending: dict[Future[Feedback], list[Candidate]] = {}
        waiting = iter(new)
        begun = 0
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="pkb-export") as pool:
            try:
                while True:
                    free = self._jobs - len(pending) if not self._is_late() else 0
                    for candidate in islice(waiting, free):
                        future = self._evaluator.submit(pool, *candidate.request(self._limits))
                        pending.setdefault(future, []).append(candidate)
                        begun += 1
                    if not pending:
                        break
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        for candidate in pending.pop(future):
                            self._finish(candidate, future, found)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._evaluator.close()  # or leaving the pool would wait for evaluations that nobody wants any more
                raise
        self.left += len(new) - begun
        return found

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _finish(self, candidate: Candidate, future: Future[Feedback], found: dict[Candidate, Feedback]) -> None:
        try:
            feedback = future.result()
        except StoreError:
            raise
        except InfrastructureError:
            self.faults += 1
            return
        if feedback.failure is Failure.INFRASTRUCTURE:
            self.faults += 1
            return
        self._report(candidate, feedback)
        found[candidate] = feedback
