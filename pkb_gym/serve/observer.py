"""Reports of a service on its evaluations while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.errors import EvaluationNotFound, PkbError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.serve.evaluation import Evaluation


class Observer:
    """The observer of events, called from several threads; every method returns soon and raises nothing.

    The methods of this class do nothing: an observer overrides those that it needs.
    """

    def accepted(self, evaluation: Evaluation, client: str) -> None:
        """A request has become an evaluation."""

    def recovered(self, evaluation: Evaluation) -> None:
        """An evaluation that an earlier service accepted waits again."""

    def joined(self, evaluation: Evaluation, client: str) -> None:
        """A request is answered by the evaluation of an equal one."""

    def refused(self, client: str, error: PkbError) -> None:
        """A request found no place."""

    def begun(self, evaluation: Evaluation) -> None:
        """An evaluation has left the queue."""

    def finished(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        """An evaluation has its answer; an exception stands for a refusal, or for the last client's withdrawal."""

    def evaluator_replaced(self, why: str) -> None:
        """The evaluator had to go."""


class Observers(Observer):
    """Several, in order.

    Args:
        observers: each is called with every event.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def accepted(self, evaluation: Evaluation, client: str) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.accepted(evaluation, client)

    def recovered(self, evaluation: Evaluation) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.recovered(evaluation)

    def joined(self, evaluation: Evaluation, client: str) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.joined(evaluation, client)

    def refused(self, client: str, error: PkbError) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.refused(client, error)

    def begun(self, evaluation: Evaluation) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.begun(evaluation)

    def finished(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.finished(evaluation, answer)

    def evaluator_replaced(self, why: str) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.evaluator_replaced(why)


def verdict(answer: Feedback | Exception) -> str:
    """The result of an evaluation, in one word: `passed`, a failure, `given_up` or `refused`."""
    if isinstance(answer, Feedback):
        return "passed" if answer.failure is None else answer.failure.value
    return "given_up" if isinstance(answer, EvaluationNotFound) else "refused"
