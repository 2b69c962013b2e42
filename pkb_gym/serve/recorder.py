"""Records of a service's evaluations: the journal and the file of results, either of which may be absent."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.queue.store import EvaluationStore, StoredEvaluation
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.serve.evaluation import Evaluation, ServiceEvent

logger = logging.getLogger(__name__)


class Recorder:
    """Records evaluations so that each is in the results once; safe in several threads.

    Only an accepted request that cannot be recorded is an error. Clients get their answers all the same: a lost answer
    is evaluated again by the next service, and is in the results once, as nothing goes there that the journal lacks.
    The results have neither rewards nor replies, which are the clients' business.

    Args:
        journal: Accepted evaluations; without it they end with the service.
        results: File of all answers, in the format of every file of results.
    """

    def __init__(self, journal: EvaluationStore | None = None, results: AttemptFile | None = None) -> None:
        self._journal, self._results = journal, results
        self._appending = threading.Lock()

    @property
    def is_kept(self) -> bool:
        """Whether accepted evaluations outlive the service."""
        return self._journal is not None

    def stored(self) -> list[StoredEvaluation]:
        """The evaluations of an earlier service; see `EvaluationStore.stored`."""
        return [] if self._journal is None else self._journal.stored()

    def record(self, event: ServiceEvent) -> Future[None] | None:
        """Records an event; returns what an accepted or joined request has to wait for.

        Raises:
            InfrastructureError: The journal was closed.
        """
        entry, journal = event.entry, self._journal
        if entry is None:
            return None
        if event.name == "finished":
            self._finished(entry, event.answer)
        elif journal is None:
            return None
        elif event.name == "accepted":
            request = EvaluationRequest(problem=entry.problem.name, source=entry.source, config=entry.config)
            return journal.accepted(entry.id, event.client, request)
        elif event.name == "joined" and entry.answer is None:
            return journal.joined(entry.id, event.client)
        elif event.name == "gave_up":
            journal.gave_up(entry.id, event.client)
        elif event.name == "begun":
            journal.begun(entry.id)
        return None

    def drop(self, evaluation_id: str) -> None:
        """Forgets an evaluation of an earlier service that nobody waits for."""
        if self._journal is not None:
            self._journal.removed(evaluation_id)

    def keep_again(self, evaluation: Evaluation, stored: StoredEvaluation) -> None:
        """Adds the answer of an earlier service to the results, unless it is there."""
        if self._results is None or stored.feedback is None or stored.kept:
            return
        held = ((one.request_key, one.feedback) for one in self._results.attempts)
        if (evaluation.key, stored.feedback) in held or self._append(evaluation, stored.feedback):
            self._mark_kept(evaluation)

    def _finished(self, evaluation: Evaluation, answer: object) -> None:
        if not isinstance(answer, Feedback):
            self.drop(evaluation.id)
            return
        if self._journal is not None:
            try:
                self._journal.answered(evaluation.id, answer).result()
            except InfrastructureError as error:
                logger.warning("an answer is not recorded: %s", error)
                return
        if self._results is not None and self._append(evaluation, answer):
            self._mark_kept(evaluation)

    def _mark_kept(self, evaluation: Evaluation) -> None:
        if self._journal is not None:
            self._journal.kept(evaluation.id)

    def _append(self, evaluation: Evaluation, feedback: Feedback) -> bool:
        """Adds a line to the results; whether it is there. A full disk is logged."""
        assert self._results is not None
        attempt = Attempt(
            problem=evaluation.problem.name,
            turn=evaluation.config.turn,
            requested=evaluation.config,
            request_key=evaluation.key,
            source=evaluation.source,
            feedback=feedback,
            duration_s=time.monotonic() - evaluation.requested_at_s,
        )
        with self._appending:
            try:
                self._results.append(attempt)
            except (InfrastructureError, OSError) as error:
                logger.warning("this evaluation is not kept: %s", error)
                return False
        return True
