"""Keeps what a service has judged, in the format of every file of results."""

from __future__ import annotations

import logging
import threading
import time

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.serve.evaluation import Evaluation

logger = logging.getLogger(__name__)


class ResultsLog:
    """Appends each evaluation once, however many requests it answered; safe to use from several threads.

    The service knows neither rewards nor replies: those are its clients' business.

    Args:
        file: where to.
    """

    def __init__(self, file: AttemptFile) -> None:
        self._file, self._lock = file, threading.Lock()

    def add(self, evaluation: Evaluation, feedback: Feedback) -> bool:
        """Writes one evaluation; whether it is kept.

        A disk that does not take it is logged, as clients want their answer all the same.
        """
        attempt = Attempt(
            problem=evaluation.problem.name,
            turn=evaluation.config.turn,
            requested=evaluation.config,
            request_key=evaluation.key,
            source=evaluation.source,
            feedback=feedback,
            duration_s=time.monotonic() - evaluation.requested_at_s,
        )
        with self._lock:
            try:
                self._file.append(attempt)
            except (InfrastructureError, OSError) as error:
                logger.warning("this evaluation is not kept: %s", error)
                return False
        return True

    def held_before(self, evaluation: Evaluation, feedback: Feedback) -> bool:
        """Whether the file held this evaluation when it was opened."""
        return any(one.request_key == evaluation.key and one.feedback == feedback for one in self._file.attempts)
