"""Messages between clients, the pool and its workers: records, as JSON text."""

from __future__ import annotations

import json
from typing import Literal, TypeVar

from pydantic import Field

from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.service import ErrorReport, EvaluationRequest

AnyRecord = TypeVar("AnyRecord", bound=Record)

Purpose = Literal["shared", "exclusive"]
"""Purpose of a gang: to check beside others, or to time and profile with its devices for itself."""


class Hello(Record):
    """First message of a client."""

    client: str
    """Random name of the client."""
    version: str
    """Version of pkb-gym."""
    settings: dict[str, object]
    """Settings of the pool that the client's address names."""


class PoolRequest(Record):
    """A request to evaluate."""

    request: EvaluationRequest
    client: str
    priority: int = 0
    """Higher ones go first; clients of one priority take turns."""
    reports: bool = False
    """Whether the client follows the stages."""
    timeout_s: float = Field(gt=0)
    """Time from now after which the client no longer waits."""


class PoolReply(Record):
    """Answer of the pool to a client."""

    key: str = ""
    """Key of the evaluation."""
    state: str = ""
    """"queued", the present stage, or "finished"."""
    feedback: str | None = None
    """JSON text of the `Feedback`, once it has finished."""
    error: ErrorReport | None = None
    """Why there is no feedback and will be none."""


class Order(Record):
    """One step of an evaluation, for a worker."""

    request: EvaluationRequest
    """Request with device and world size decided."""
    key: str
    """Key of the request as it was submitted."""
    attempt: str
    """Name of this attempt at the step."""
    until: Literal["compile", "check"] | None = None
    """Last stage of the step, where that is before the last one of the request."""
    reports: bool = False
    """Whether a client follows the stages."""


class StepReply(Record):
    """Result of one step."""

    feedback: str | None = None
    """JSON text of the `Feedback`, under the requested configuration."""
    is_final: bool = False
    """Whether the evaluation ends with it."""
    is_infrastructure: bool = False
    """Whether the machine failed, not the candidate."""
    compiled: bool = False
    """Whether the source compiled."""
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Durations of the feedback, in seconds."""
    error: ErrorReport | None = None
    """Present where there is no feedback."""


class GangSpec(Record):
    """Arguments of a gang."""

    device: Device
    world_size: int
    purpose: Purpose
    slots: int
    """Evaluations at the same time."""
    evaluator: str
    key: str
    """Secret that fixes the inputs, in hexadecimal; one for all gangs of a pool."""
    problems: tuple[str, ...] = ()


class CompileSpec(Record):
    """Arguments of a compile task."""

    evaluator: str
    key: str
    problems: tuple[str, ...] = ()
    architecture: str | None = None


class LaneStatus(Record):
    """The gangs of one device, world size and purpose."""

    device: Device
    world_size: int
    purpose: Purpose
    gangs: int
    """Gangs that are ready."""
    starting: int
    """Gangs that are being started."""
    busy: int
    """Evaluations that run on gangs."""
    slots: int
    """Evaluations that could run on gangs at the same time."""
    waiting: int
    """Evaluations that wait for a gang."""
    most: int
    """Limit of the number of gangs."""


class PoolStatus(Record):
    """State of a pool, and its counts since it was started."""

    pool: str
    unfinished: int
    """Evaluations that wait or run."""
    compiling: int
    """Compiles that run."""
    waiting_to_compile: int
    """Evaluations that wait for a compiler."""
    lanes: tuple[LaneStatus, ...]
    submitted: int
    """Requests that began an evaluation."""
    joined: int
    """Requests that were answered by the evaluation of an earlier, equal request."""
    refused: int
    """Requests that found the pool full."""
    finished: int
    """Evaluations that were answered."""
    cancelled: int
    """Evaluations that were cancelled, as no client waited for them."""
    infrastructure_faults: int
    """Evaluations that ended as an infrastructure failure or error."""
    retries: int
    """Further attempts after a node, gang or evaluator had failed."""
    gangs_started: int
    """Gangs that were started."""
    gangs_lost: int
    """Gangs that ended unasked, or were ended for a fault."""
    compiles: int
    """Compile tasks that ran."""
    artifacts: int
    """Sources whose artifacts are in the object store."""
    exclusive_steps: int
    """Steps that took an exclusive gang."""
    durations_s: dict[str, float]
    """Sums of `Feedback.durations_s` over all steps, in seconds."""
    queue_s: float
    """Seconds that steps waited for a compiler or a gang, summed."""
    uptime_s: float


def to_text(record: Record) -> str:
    """JSON text of a record; lone surrogates, which pydantic's own JSON cannot carry, are escaped."""
    return json.dumps(record.model_dump(mode="python"))


def from_text(kind: type[AnyRecord], text: str) -> AnyRecord:
    """The record that `to_text` wrote.

    Raises:
        ValueError: it is none of this kind.
    """
    return kind.model_validate(json.loads(text))
