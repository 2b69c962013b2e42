"""What an evaluation service and its clients tell each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainValidator

from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback

QUEUED, FINISHED = "queued", "finished"

MAX_WAIT_S = 30.0
"""Longest that the service keeps a request waiting; clients ask again."""


def _any_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value


class Question(Record):
    """What is to be judged, and how."""

    problem: str
    """Name in the catalogue."""
    source: Annotated[str, PlainValidator(_any_text)]
    """Whatever characters it has, half ones too: to reject them is the evaluation's business."""
    config: EvalConfig = Field(default_factory=EvalConfig)


class EvaluationState(Record):
    """Where an evaluation stands."""

    id: str
    state: str
    """"queued", what it is at in a few words (such as "compile" or "waiting for its turn"), or "finished"."""
    feedback: Feedback | None = None
    """Present exactly when it has finished."""


class PauseState(Record):
    """How far a pause has come."""

    idle: bool
    """Whether nothing runs on the devices any more."""


class ErrorReport(Record):
    """Why a request was refused."""

    error: str
    """Class of the error."""
    message: str
    """What was expected, what came, what to do."""


class ServiceStatus(Record):
    """What an evaluation service is at, and what it has done since it was started."""

    queued: int
    """Evaluations that have not begun."""
    compiling: int
    """Evaluations whose text is being checked or compiled."""
    waiting: int
    """Evaluations that have begun and wait for a processor, or for the devices; all the compiled ones, while paused."""
    running: int
    """Evaluations that have the devices: at most one."""
    finished: int
    """Evaluations that were answered, by the evaluator or as a fault of ours."""
    joined: int
    """Questions that were answered by an evaluation that somebody had already asked for."""
    refused: int
    """Questions that found the queue full."""
    infrastructure_faults: int
    """Evaluations that ended as a fault of ours."""
    restarts: int
    """Evaluators that were replaced."""
    evaluations_per_minute: int
    """Evaluations that finished in the last minute."""
    durations_s: dict[str, float]
    """Wall time of each stage, summed over all evaluations; waiting is not counted."""
    paused: bool
    """Whether the devices are left to somebody else."""
    uptime_s: float
    """Since the service was started."""
