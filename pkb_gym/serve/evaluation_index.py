"""The evaluations that a service holds, by id and by request; of those that were answered, the last so many."""

from __future__ import annotations

from collections import OrderedDict

from pkb_gym.serve.evaluation import Evaluation


class EvaluationIndex:
    """An index; the service's lock guards it.

    Args:
        max_answers: answers that are kept; the least recently requested are forgotten first.
    """

    def __init__(self, max_answers: int) -> None:
        self._max_answers = max_answers
        self._by_id: dict[str, Evaluation] = {}
        self._by_key: dict[str, Evaluation] = {}
        self._answered: OrderedDict[str, Evaluation] = OrderedDict()

    def add(self, evaluation: Evaluation) -> None:
        """Has an evaluation found by its id and, unless it has a key of its own for the inputs, by its request."""
        self._by_id[evaluation.id] = evaluation
        if evaluation.replay_key is None:
            self._by_key[evaluation.key] = evaluation

    def find(self, evaluation_id: str) -> Evaluation | None:
        """The evaluation of that id; its answer is kept longer."""
        evaluation = self._by_id.get(evaluation_id)
        if evaluation is not None and evaluation.id in self._answered:
            self._answered.move_to_end(evaluation.id)
        return evaluation

    def find_equal(self, key: str) -> Evaluation | None:
        """The evaluation that an equal request joins."""
        evaluation = self._by_key.get(key)
        return None if evaluation is None else self.find(evaluation.id)

    def join_no_more(self, evaluation: Evaluation) -> None:
        """Has the next equal request begin another evaluation."""
        if self._by_key.get(evaluation.key) is evaluation:
            del self._by_key[evaluation.key]

    def answered(self, evaluation: Evaluation) -> None:
        """Keeps an evaluation for its answer."""
        self._answered[evaluation.id] = evaluation
        while len(self._answered) > self._max_answers:
            self.forget(self._answered.popitem(last=False)[1])

    def forget(self, evaluation: Evaluation) -> None:
        """Has an evaluation found no more."""
        del self._by_id[evaluation.id]
        self.join_no_more(evaluation)
