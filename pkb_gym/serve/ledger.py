"""The record of a service's evaluations: the journal and the file of results, either of which may be absent."""

from __future__ import annotations

import logging

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.journal import (
    Begun,
    EvaluationJournal,
    Finished,
    GaveUp,
    Joined,
    JournalEntry,
    Kept,
    Recovered,
    accepted_now,
)
from pkb_gym.serve.results import ResultsLog

logger = logging.getLogger(__name__)


class Ledger:
    """Records evaluations so that each is in the results once; safe to use from several threads.

    Only a promise that cannot be recorded is an error. Clients get their answers all the same: what is lost then is
    evaluated again by the next service, and is in the results once, as nothing goes there that the journal lacks.

    Args:
        journal: of accepted evaluations; without it they end with the service.
        results: of answers.
    """

    def __init__(self, journal: EvaluationJournal | None = None, results: ResultsLog | None = None) -> None:
        self._journal, self._results = journal, results

    @property
    def is_kept(self) -> bool:
        """Whether accepted evaluations outlive the service."""
        return self._journal is not None

    def recovered(self) -> list[Recovered]:
        """The evaluations that an earlier service has left; see `EvaluationJournal.recovered`.

        Raises:
            ConfigError: a line of the journal is no entry of this version.
        """
        return [] if self._journal is None else self._journal.recovered()

    def accepted(self, evaluation: Evaluation, client: str) -> int:
        """Records a promise; returns its number, for `wait_durable`.

        Raises:
            InfrastructureError: it cannot be recorded.
        """
        if self._journal is None:
            return 0
        request = EvaluationRequest(problem=evaluation.problem.name, source=evaluation.source, config=evaluation.config)
        try:
            return self._journal.append(accepted_now(evaluation.id, client, request))
        except OSError as error:
            raise InfrastructureError(f"the journal cannot be written: {error.strerror}") from error

    def wait_durable(self, promise: int) -> None:
        """Returns when a promise outlives a loss of power.

        Raises:
            InfrastructureError: the disk would not take it.
        """
        if self._journal is not None:
            self._journal.sync(promise)

    def joined(self, evaluation: Evaluation, client: str) -> int:
        """Records that one more request asks for an evaluation; returns the number, for `wait_durable`."""
        return self._record(Joined(id=evaluation.id, client=client)) or 0

    def gave_up(self, evaluation: Evaluation, client: str) -> None:
        """Records that a request was taken back."""
        self._record(GaveUp(id=evaluation.id, client=client))

    def begun(self, evaluation: Evaluation) -> None:
        """Records that an evaluator has an evaluation in hand."""
        self._record(Begun(id=evaluation.id))

    def answered(self, evaluation: Evaluation, feedback: Feedback | None) -> None:
        """Records an answer in the journal, then in the results; None where a request was refused or given up."""
        number = self._record(Finished(id=evaluation.id, feedback=feedback))
        if feedback is None or (self._journal is not None and number is None):
            return
        if self._journal is not None and number is not None:
            try:
                self._journal.sync(number)
            except InfrastructureError as error:
                logger.warning("an answer may be lost in a loss of power: %s", error)
        self._keep(evaluation, feedback)

    def void(self, job: Recovered) -> None:
        """Records that nobody waits for an evaluation of an earlier service."""
        if job.feedback is None:
            self._record(Finished(id=job.accepted.id, feedback=None))

    def keep_again(self, evaluation: Evaluation, job: Recovered) -> None:
        """Records the answer of an earlier service in the results, unless it is there."""
        if self._results is None or job.feedback is None or job.kept:
            return
        if self._results.held_before(evaluation, job.feedback):
            self._record(Kept(id=evaluation.id))
        else:
            self._keep(evaluation, job.feedback)

    def _keep(self, evaluation: Evaluation, feedback: Feedback) -> None:
        if self._results is not None and self._results.add(evaluation, feedback):
            self._record(Kept(id=evaluation.id))

    def _record(self, entry: JournalEntry) -> int | None:
        """The number of the entry; None where it is not recorded."""
        if self._journal is None:
            return None
        try:
            return self._journal.append(entry)
        except (InfrastructureError, OSError) as error:
            logger.warning("the journal lacks an entry: %s", error)
            return None
