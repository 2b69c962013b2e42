"""Messages between an evaluation service and its clients."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import Field

from pkb_gym.engine.errors import (
    ConfigError,
    EvaluationNotFound,
    InfrastructureError,
    PermissionRefused,
    PkbError,
    ProblemNotFound,
    ServiceBusy,
    SizeError,
)
from pkb_gym.engine.records.base import Record, Text
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_digest import source_sha256

_REPORTED: dict[str, type[PkbError]] = {
    kind.__name__: kind
    for kind in (ProblemNotFound, PermissionRefused, ConfigError, SizeError, ServiceBusy, EvaluationNotFound)
}

QUEUED, FINISHED = "queued", "finished"

MAX_WAIT_S = 30.0
"""Longest that the service keeps a request waiting; clients ask again."""


class EvaluationRequest(Record):
    """A source to be evaluated, and how."""

    problem: str
    """Name in the catalogue."""
    source: Text
    """Any characters, lone surrogates included: rejecting them is the evaluation's business."""
    config: EvalConfig = Field(default_factory=EvalConfig)
    replay_key: str | None = Field(default=None, pattern="^([0-9a-f]{2})+$")
    """Secret that, with the seed, fixes the inputs, in hexadecimal; None where the service's own does."""

    @property
    def key(self) -> str:
        """SHA-256 of all fields in hexadecimal: equal exactly for equal requests."""
        content = [self.problem, source_sha256(self.source), self.config.model_dump(mode="json")]
        content += [] if self.replay_key is None else [self.replay_key]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class EvaluationState(Record):
    """The state of an evaluation."""

    id: str
    state: str
    """"queued", what it is at in a few words (such as "compile" or "waiting for its turn"), or "finished"."""
    feedback: Feedback | None = None
    """Present exactly when it has finished."""
    reward: float | None = None
    """Reward of the feedback by the requested preset; None where none was requested, and for an infrastructure failure.
    """


class PauseState(Record):
    """The state of a pause."""

    idle: bool
    """Whether nothing runs on the devices any more."""


class ErrorReport(Record):
    """Why a request was refused."""

    error: str
    """Class of the error."""
    message: str
    """The problem, the expected value, the value that came, and the remedy."""

    @classmethod
    def of(cls, error: Exception) -> Self:
        """The report of an error."""
        return cls(error=type(error).__name__, message=str(error))

    def exception(self) -> PkbError:
        """The error again, as the same class; `InfrastructureError` for a class that no service reports."""
        return _REPORTED.get(self.error, InfrastructureError)(self.message)


class ServiceStatus(Record):
    """The state of an evaluation service, and its counts since it was started."""

    queued: int
    """Evaluations that have not begun."""
    compiling: int
    """Evaluations whose text is being checked or compiled."""
    waiting: int
    """Evaluations that have begun and wait for a processor, or for the devices; all the compiled ones, while paused."""
    running: int
    """Evaluations that have the devices: at most one."""
    finished: int
    """Evaluations that were answered, by the evaluator or as an infrastructure failure."""
    joined: int
    """Requests that were answered by the evaluation of an earlier, equal request."""
    refused: int
    """Requests that found the queue full."""
    infrastructure_faults: int
    """Evaluations that ended as an infrastructure failure."""
    restarts: int
    """Evaluators that were replaced."""
    evaluations_per_minute: int
    """Evaluations that finished in the last minute."""
    durations_s: dict[str, float]
    """Sums of `Feedback.durations_s` over all evaluations, in seconds; time in the queue is not counted."""
    paused: bool
    """Whether the devices are left to somebody else."""
    uptime_s: float
    """Since the service was started."""
