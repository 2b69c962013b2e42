"""The actor that owns the devices of one gang: evaluators of the trusted side, on the node of its placement group."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pkb_gym.cluster.artifacts import Artifacts, adopt_all
from pkb_gym.cluster.evaluation_step import Cancelled, evaluator_opener, register_problems, take_step
from pkb_gym.cluster.records import GangSpec, Order, from_text, to_text
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.evaluator import KeyedEvaluator
from pkb_gym.engine.records.feedback import Stage

if TYPE_CHECKING:
    from ray.actor import ActorHandle

COMPILING = frozenset({Stage.STATIC.value, Stage.COMPILE.value})
"""Not reported: the compile task has done it before, and here the artifact is found."""

MORE_THREADS = 4
"""Threads of the actor beyond those that evaluate: for `cancel` and `ready`."""


class GangActor:
    """Takes steps of evaluations, as many at a time as it has slots, each by an evaluator of its own.

    Args:
        spec: JSON text of a `GangSpec`.
    """

    def __init__(self, spec: str) -> None:
        self._spec = from_text(GangSpec, spec)
        register_problems(self._spec.problems)
        self._cache = CompileCache.in_folder(None)
        self._open = evaluator_opener(self._spec.evaluator)
        self._idle: queue.LifoQueue[KeyedEvaluator | None] = queue.LifoQueue()
        for _ in range(self._spec.slots - 1):
            self._idle.put(None)  # opened when it is first needed
        self._evaluators: list[KeyedEvaluator] = []
        self._idle.put(self._new_evaluator())
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._cancelled: set[str] = set()

    def ready(self) -> bool:
        """Answers once the actor has been made."""
        return True

    def step(self, order: str, artifacts: Artifacts, pool: ActorHandle[Any] | None) -> str:
        """Takes one step of an evaluation.

        Args:
            order: JSON text of an `Order`.
            artifacts: Artifacts of the source.
            pool: Handle that receives each stage as it begins, where the order has `reports`.

        Returns:
            JSON text of a `StepReply`.
        """
        adopt_all(self._cache, artifacts)
        decoded = from_text(Order, order)
        key, attempt = decoded.key, decoded.attempt
        on_stage = None
        if decoded.reports and pool is not None:

            def on_stage(state: str) -> None:
                if state not in COMPILING:
                    pool.note.remote(key, attempt, state)

        with self._running_as(attempt), self._idle_evaluator() as evaluator:
            return to_text(take_step(evaluator, decoded, self._progress(attempt, on_stage)))

    def cancel(self, attempt: str) -> None:
        """Ends a step before its next stage; one that is over already stays as it is."""
        with self._lock:
            if attempt in self._running:
                self._cancelled.add(attempt)

    def close(self) -> None:
        """Ends every process of its evaluators; calling it again changes nothing."""
        for evaluator in self._evaluators:
            evaluator.close()

    def _new_evaluator(self) -> KeyedEvaluator:
        evaluator = self._open(bytes.fromhex(self._spec.key), self._cache)
        self._evaluators.append(evaluator)
        return evaluator

    @contextlib.contextmanager
    def _idle_evaluator(self) -> Iterator[KeyedEvaluator]:
        evaluator = self._idle.get() or self._new_evaluator()
        try:
            yield evaluator
        finally:
            self._idle.put(evaluator)

    @contextlib.contextmanager
    def _running_as(self, attempt: str) -> Iterator[None]:
        with self._lock:
            self._running.add(attempt)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(attempt)
                self._cancelled.discard(attempt)

    def _progress(self, attempt: str, on_stage: Callable[[str], None] | None) -> Callable[[str], None]:
        def report(state: str) -> None:
            with self._lock:
                if attempt in self._cancelled:
                    raise Cancelled
            if on_stage is not None:
                on_stage(state)

        return report
