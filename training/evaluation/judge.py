"""Judges the sources of many rollouts at once: in threads, each question once, none for longer than its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.reward import Reward

logger = logging.getLogger(__name__)

Fault: TypeAlias = Literal["infrastructure", "crashed", "late"]
"""What went wrong on our side: the evaluator said so, it raised, or it missed the deadline."""

MAX_THREADS = 256
"""They wait for the evaluator and compute nothing."""

REMEMBERED = 4096
"""Evaluations whose result is kept for those who ask the same again."""


@dataclass(frozen=True)
class Verdict:
    """What came of judging one source.

    Attributes:
        feedback: what the evaluation found; None where it crashed or was late.
        value: what the reward makes of it; None where the fault was ours.
        fault: of ours, if any.
        waited_s: from asking to hearing.
        is_duplicate: whether this process had asked the same before, and nothing was evaluated again.
    """

    feedback: Feedback | None
    value: float | None
    fault: Fault | None
    waited_s: float
    is_duplicate: bool


class Judge:
    """Asks an evaluator, without ever failing or hanging itself; used by all rollouts of a process.

    Args:
        evaluator: safe to call from several threads.
        reward: values one submission: a name (see `pkb_gym.rewards.presets`) or an object.
        deadline_s: longest wait for one evaluation; it is a fault of ours when it passes.
    """

    def __init__(self, evaluator: Evaluator, reward: str | Reward = "default", deadline_s: float = 600.0) -> None:
        if deadline_s <= 0:
            raise ValueError(f"deadline_s must be positive, got {deadline_s}")
        self._evaluator = evaluator
        self._reward = find_reward(reward)
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="pkb-judge")
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, Future[Feedback]] = OrderedDict()
        self._asked: set[str] = set()

    def prefetch(self, problem: Problem, source: str, config: EvalConfig) -> None:
        """Begins to judge what `judge` will be asked; returns at once."""
        with self._lock:
            self._begin(problem, source, config)

    async def judge(self, problem: Problem, source: str, config: EvalConfig) -> Verdict:
        """Judges one source; never raises on account of the evaluator."""
        began = time.monotonic()
        question = _question(problem, source, config)
        with self._lock:
            future = self._begin(problem, source, config)
            is_duplicate = question in self._asked
            self._asked.add(question)
        feedback, fault = await self._wait(future, problem)
        if fault is not None:
            with self._lock:  # whoever asks again shall not hear the same fault
                if self._begun.get(question) is future:
                    del self._begun[question]
        value = None if fault is not None or feedback is None else self._reward(feedback)
        return Verdict(feedback, value, fault, time.monotonic() - began, is_duplicate)

    def _begin(self, problem: Problem, source: str, config: EvalConfig) -> Future[Feedback]:
        question = _question(problem, source, config)
        if question not in self._begun:
            self._asked.discard(question)
            self._begun[question] = self._threads.submit(self._evaluator.evaluate, problem, source, config)
            if len(self._begun) > REMEMBERED:
                self._asked.discard(self._begun.popitem(last=False)[0])
        return self._begun[question]

    async def _wait(self, future: Future[Feedback], problem: Problem) -> tuple[Feedback | None, Fault | None]:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[Feedback]) -> None:
            with contextlib.suppress(RuntimeError):  # nobody listens any more: the loop was closed after a deadline
                loop.call_soon_threadsafe(heard.set)

        # A thread cannot be stopped, and others may wait for the same: only this waiting ends.
        future.add_done_callback(tell)
        try:
            await asyncio.wait_for(heard.wait(), self._deadline_s)
            feedback = future.result()
        except TimeoutError:
            logger.warning("%s: no evaluation within %.0f s; it counts for nothing", problem.name, self._deadline_s)
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


def _question(problem: Problem, source: str, config: EvalConfig) -> str:
    return f"{problem.name} {source_sha256(source)} {config.model_dump_json()}"
