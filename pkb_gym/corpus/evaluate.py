"""Has many sources judged, several at a time, and keeps what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from pkb_gym.corpus.journal import Journal, evaluation_key
from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem


@dataclass(frozen=True)
class Settings:
    """How submissions are judged, beside what the task says.

    Attributes:
        timing_budget_s: timing ends after this.
        timeout_s: deadline of each block of calls.
    """

    timing_budget_s: float = 0.3
    timeout_s: float = 10.0


@dataclass(frozen=True)
class Question:
    """One source to be judged.

    Attributes:
        task: under which it is.
        source: its text.
    """

    task: Task
    source: str

    def config(self, settings: Settings) -> EvalConfig:
        """Until it is timed; the turn is always 0, so that equal questions have one answer."""
        return self.task.config(
            until="time", timing_budget_s=settings.timing_budget_s, timeout_s=settings.timeout_s, turn=0
        )


class Judge:
    """Answers questions from the journal, or by an evaluator, on several threads.

    Args:
        evaluator: judges what is not in the journal.
        journal: keeps what was found.
        settings: of the evaluations.
        jobs: evaluations at a time: compiles run side by side, timing takes turns.
        deadline: `time.monotonic()` after which nothing new is begun; None for no end.
        say: told of every new answer.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        journal: Journal,
        settings: Settings,
        *,
        jobs: int,
        deadline: float | None = None,
        say: Callable[[Question, Feedback], None] = lambda _question, _feedback: None,
    ) -> None:
        self._evaluator = evaluator
        self._journal = journal
        self._settings = settings
        self._jobs = jobs
        self._deadline = deadline
        self._say = say
        self.faults = 0
        """Questions that this machine could not answer."""
        self.left = 0
        """Questions that were not begun before the deadline."""

    def answer(self, questions: Iterable[Question]) -> dict[Question, Feedback]:
        """What was found of each that could be judged; equal questions are asked once.

        Raises:
            ConfigError, SizeError: a question makes no sense.
            InfrastructureError: the journal cannot be written.
        """
        found: dict[Question, Feedback] = {}
        new: list[Question] = []
        for question in dict.fromkeys(questions):
            known = self._journal.get(self._key(question))
            if known is None:
                new.append(question)
            else:
                found[question] = known
        pending: dict[Future[Feedback | None], Question] = {}
        waiting = iter(new)
        begun = 0
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="pkb-export") as pool:
            try:
                while True:
                    free = self._jobs - len(pending) if not self._is_late() else 0
                    for question in islice(waiting, free):
                        pending[pool.submit(self._evaluate, question)] = question
                        begun += 1
                    if not pending:
                        break
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        question = pending.pop(future)
                        self._keep(question, future.result(), found)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._evaluator.close()  # or leaving the pool would wait for evaluations that nobody wants any more
                raise
        self.left += len(new) - begun
        return found

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _key(self, question: Question) -> str:
        return evaluation_key(question.task.problem, question.source, question.config(self._settings))

    def _evaluate(self, question: Question) -> Feedback | None:
        problem = find_problem(question.task.problem)
        try:
            return self._evaluator.evaluate(problem, question.source, question.config(self._settings))
        except InfrastructureError:
            return None

    def _keep(self, question: Question, feedback: Feedback | None, found: dict[Question, Feedback]) -> None:
        if feedback is None or feedback.failure is Failure.INFRASTRUCTURE:
            self.faults += 1
            return
        self._journal.append(self._key(question), feedback)
        self._say(question, feedback)
        found[question] = feedback
