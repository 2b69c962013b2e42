"""The evaluator that answers equal requests once, by another evaluator."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future
from typing import Protocol

from pkb_gym.engine.evaluators.evaluator import Evaluator, machine_of
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.stages.progress import Progress

CAPACITY = 4096
"""Requests whose feedback is remembered, by default."""


class FeedbackStore(Protocol):
    """Keeps feedback on finished evaluations, under the key of their request."""

    def get(self, key: str) -> Feedback | None:
        """The feedback; None where the request was not evaluated yet."""

    def append(self, key: str, feedback: Feedback) -> None:
        """Keeps the feedback on a request that was not evaluated yet; never called by two threads at once.

        Raises:
            StoreError: It could not be written.
        """


class CachingEvaluator:
    """Joins equal requests in progress and remembers the feedback on finished ones.

    An exception or an infrastructure failure reaches everybody who joined the request and is not remembered: the next
    equal request is evaluated again.

    Args:
        evaluator: Evaluator that judges; safe in several threads.
        capacity: Number of requests whose feedback is remembered; the oldest are forgotten first.
        store: Further store in which feedback is looked up and kept.
    """

    def __init__(self, evaluator: Evaluator, *, capacity: int = CAPACITY, store: FeedbackStore | None = None) -> None:
        self._evaluator, self._capacity, self._store = evaluator, capacity, store
        self._futures: OrderedDict[str, Future[Feedback]] = OrderedDict()
        self._lock = threading.Lock()
        self._storing = threading.Lock()

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Judges one source, unless the feedback is known; see `Evaluator.evaluate`.

        A request that joins another one reports no progress.

        Raises:
            StoreError: The feedback could not be kept.
        """
        key = _key(problem, source, config)
        with self._lock:
            remembered = self._find(key)
            if remembered is None:
                own = self._remember(key, Future())
        if remembered is not None:
            return remembered.result()
        try:
            own.set_result(self._evaluate(key, problem, source, config, progress))
        except BaseException as error:
            own.set_exception(error)
            raise
        return own.result()

    def submit(self, executor: Executor, problem: Problem, source: str, config: EvalConfig) -> Future[Feedback]:
        """Begins an evaluation on the executor, unless an equal one is in progress or remembered; waits for nothing.

        Returns:
            The same future for all requests that join one evaluation.

        Raises:
            RuntimeError: The executor was shut down.
        """
        key = _key(problem, source, config)
        with self._lock:
            if (remembered := self._find(key)) is not None:
                return remembered
            return self._remember(key, executor.submit(self._evaluate, key, problem, source, config))

    def recall(self, problem: Problem, source: str, config: EvalConfig) -> Feedback | None:
        """The feedback on an equal request, if it is remembered or kept."""
        with self._lock:
            remembered = self._find(_key(problem, source, config))
        return remembered.result() if remembered is not None and remembered.done() else None

    def forget(self, future: Future[Feedback]) -> None:
        """Has the next request begin an evaluation of its own instead of joining that of this future."""
        with self._lock:
            for key in [key for key, remembered in self._futures.items() if remembered is future]:
                del self._futures[key]

    def machine(self) -> Machine:
        """The machine of its evaluator; see `machine_of`."""
        return machine_of(self._evaluator)

    def close(self) -> None:
        """Closes the evaluator."""
        self._evaluator.close()

    def _evaluate(
        self, key: str, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None
    ) -> Feedback:
        feedback = self._evaluator.evaluate(problem, source, config, progress)
        if self._store is not None and feedback.failure is not Failure.INFRASTRUCTURE:
            with self._storing:
                self._store.append(key, feedback)
        return feedback

    def _find(self, key: str) -> Future[Feedback] | None:
        """Called with the lock held: the evaluation in progress or finished without a fault."""
        remembered = self._futures.get(key)
        if remembered is not None and not (remembered.done() and _failed(remembered)):
            return remembered
        if self._store is None or (feedback := self._store.get(key)) is None:
            return None
        kept: Future[Feedback] = Future()
        kept.set_result(feedback)
        return kept

    def _remember(self, key: str, future: Future[Feedback]) -> Future[Feedback]:
        """Called with the lock held."""
        self._futures[key] = future
        self._futures.move_to_end(key)
        while len(self._futures) > self._capacity:
            self._futures.popitem(last=False)
        return future


def _key(problem: Problem, source: str, config: EvalConfig) -> str:
    return EvaluationRequest(problem=problem.name, source=source, config=config).key


def _failed(done: Future[Feedback]) -> bool:
    if done.cancelled() or done.exception() is not None:
        return True
    return done.result().failure is Failure.INFRASTRUCTURE
