"""The evaluation service over HTTP.

    POST   /v1/evaluations              an `EvaluationRequest`; answered with an `EvaluationState`
    GET    /v1/evaluations/{id}?wait_s= its `EvaluationState`, once it has finished or after so many seconds; with
                                        &reward= and a preset, the reward too
    DELETE /v1/evaluations/{id}         gives up interest in it
    GET    /v1/status                   a `ServiceStatus`
    POST   /v1/pause?wait_s=            leaves the devices to another program; a `PauseState`
    POST   /v1/resume                   ends the pause; a `PauseState`
    GET    /metrics                     the metrics, for Prometheus
    GET    /v1/health                   {"ok": true}; needs no token
    GET    /openapi.json, /docs         the description of all of this, and as a page; need no token

What is refused is answered with an `ErrorReport`, whose `error` is the class that `RemoteEvaluator` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from pkb_gym import __version__
from pkb_gym.engine.errors import (
    ConfigError,
    EvaluationNotFound,
    InfrastructureError,
    PermissionRefused,
    PkbError,
    ProblemNotFound,
    ServiceBusy,
)
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.service import (
    FINISHED,
    MAX_WAIT_S,
    ErrorReport,
    EvaluationRequest,
    EvaluationState,
    PauseState,
    ServiceStatus,
)
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.reward import Reward
from pkb_gym.serve.clients import Clients
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.guard import Guard, client_of
from pkb_gym.serve.json_log import EventLog
from pkb_gym.serve.openapi import add_description
from pkb_gym.serve.prometheus_metrics import CONTENT_TYPE, Metrics
from pkb_gym.serve.request_observer import HandledRequest, RequestObserver
from pkb_gym.serve.service import EvaluationService
from pkb_gym.serve.shutdown import ShutdownEvent

if TYPE_CHECKING:
    from fastapi import FastAPI

STATUSES: tuple[tuple[type[PkbError], int], ...] = (
    (ProblemNotFound, 404),
    (EvaluationNotFound, 404),
    (PermissionRefused, 403),
    (ServiceBusy, 429),
    (InfrastructureError, 503),
    (PkbError, 400),
)
"""Class of an error -> HTTP status; the first that fits counts."""

REFUSALS = {
    400: "the request makes no sense",
    401: "no token, or the wrong one",
    403: "this client may not do that",
    404: "no such problem or evaluation",
    408: "the body came too slowly",
    413: "the body is too large",
    429: "too many evaluations wait, of this client or of all",
    503: "no evaluator can be started, or the service ends",
}
"""HTTP status -> when, for the description."""

RETRY_S = 1
"""In the header of a 429: when to ask again."""


@dataclass(frozen=True)
class Telemetry:
    """The observers of the service.

    Attributes:
        metrics: for /metrics.
        events: the log.
    """

    metrics: Metrics = field(default_factory=Metrics)
    events: EventLog = field(default_factory=EventLog)

    def answered(self, request: HandledRequest) -> None:
        """Reports a request to both."""
        self.metrics.answered(request)
        self.events.answered(request)


def make_app(service: EvaluationService, clients: Clients, shutdown: ShutdownEvent, telemetry: Telemetry) -> FastAPI:
    """The application.

    Args:
        service: who answers.
        clients: whose tokens requests carry.
        shutdown: once it is set, requests are no longer kept waiting.
        telemetry: is called with each request.
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    telemetry.metrics.watch(service)
    endpoints = _Endpoints(service, shutdown, telemetry.metrics)
    # Without FastAPI's own pages, which load scripts from elsewhere.
    app = FastAPI(
        title="pkb-gym evaluation service", version=__version__, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.add_middleware(Guard, clients=clients)
    app.add_middleware(RequestObserver, report=telemetry.answered)
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReport, "description": when} for status, when in REFUSALS.items()
    }
    for method, path, endpoint, answer, status in (
        ("POST", "/v1/evaluations", endpoints.submit, EvaluationState, 202),
        ("GET", "/v1/evaluations/{evaluation_id}", endpoints.state, EvaluationState, 200),
        ("DELETE", "/v1/evaluations/{evaluation_id}", endpoints.give_up, None, 200),
        ("GET", "/v1/status", endpoints.status, ServiceStatus, 200),
        ("POST", "/v1/pause", endpoints.pause, PauseState, 200),
        ("POST", "/v1/resume", endpoints.resume, PauseState, 200),
        ("GET", "/metrics", endpoints.metrics, None, 200),
        ("GET", "/v1/health", endpoints.health, None, 200),
    ):
        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=answer,
            status_code=status,
            responses=refusals,
            summary=(endpoint.__doc__ or "").strip(),
            description="",
        )
    add_description(app)

    async def refuse(request: Request, error: Exception) -> Response:
        return _refuse(request, error, clients)

    for kind in (PkbError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, refuse)
    return app


class _Endpoints:
    """One method for each path; those that may take a moment are no coroutines, and so run in threads."""

    def __init__(self, service: EvaluationService, shutdown: ShutdownEvent, metrics: Metrics) -> None:
        self._service, self._shutdown, self._metrics = service, shutdown, metrics

    def submit(self, requested: EvaluationRequest, request: Request) -> Response:
        """Has a source evaluated, or joins the evaluation of an equal request."""
        client = client_of(request.scope)
        evaluation_id = self._service.submit(requested, client)
        return _answer(_state(self._service.find(evaluation_id, client)), 202)

    async def state(
        self, evaluation_id: str, request: Request, wait_s: float = 0.0, reward: str | None = None
    ) -> Response:
        """The state of an evaluation, once it has finished or `wait_s` (at most 30) has passed."""
        preset = None if reward is None else _preset(reward)
        evaluation = self._service.find(evaluation_id, client_of(request.scope))
        ready, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake(_: Future[Feedback] | None = None) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(ready.set)

        if not evaluation.answer.done() and wait_s > 0:
            evaluation.answer.add_done_callback(wake)
            with self._shutdown.calling(wake), contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ready.wait(), min(wait_s, MAX_WAIT_S))
        state = _state(evaluation)
        if preset is not None and state.feedback is not None:
            state = state.model_copy(update={"reward": preset(state.feedback)})
        return _answer(state)

    def give_up(self, evaluation_id: str, request: Request) -> Response:
        """Takes a submission back; what no other client asks for never begins, or ends before its next stage."""
        self._service.give_up(evaluation_id, client_of(request.scope))
        return _json(b"{}")

    def status(self) -> Response:
        """The state of the service, and its counts."""
        return _answer(self._service.status())

    def pause(self, request: Request, wait_s: float = 0.0) -> Response:
        """Leaves the devices to another program; waits `wait_s` (at most 30) until nothing runs there."""
        _check_may_pause(request)
        return _answer(PauseState(idle=self._service.pause(max(0.0, min(wait_s, MAX_WAIT_S)))))

    def resume(self, request: Request) -> Response:
        """Ends a pause."""
        _check_may_pause(request)
        self._service.resume()
        return _answer(PauseState(idle=False))

    def metrics(self) -> Response:
        """The metrics, in the text format of Prometheus."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def health(self) -> Response:
        """Whether the service answers."""
        return _json(b'{"ok": true}')


def _check_may_pause(request: Request) -> None:
    client = client_of(request.scope)
    if not client.may_pause:
        raise PermissionRefused(f"client {client.name} may not pause this service; its entry needs may_pause = true")


def _preset(name: str) -> Reward:
    """A reward that a request may name: of the presets alone, as other names import modules.

    Raises:
        ConfigError: there is none.
    """
    if (preset := PRESETS.get(name)) is None:
        raise ConfigError(f"no preset of rewards {name!r}; expected one of {', '.join(PRESETS)}")
    return preset


def _state(evaluation: Evaluation) -> EvaluationState:
    """The record of it for a client.

    Raises:
        ConfigError, SizeError: the evaluator refused the request.
        InfrastructureError: the service ends before the evaluation.
    """
    if not evaluation.answer.done():
        return EvaluationState(id=evaluation.id, state=evaluation.state)
    return EvaluationState(id=evaluation.id, state=FINISHED, feedback=evaluation.answer.result())


def _answer(record: Record, status: int = 200) -> Response:
    return _json(record.model_dump_json().encode(), status)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _refuse(request: Request, error: Exception, clients: Clients) -> Response:
    """Any error as a record, without tokens."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    if isinstance(error, PkbError):
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        kind, message = type(error).__name__, str(error)
    elif isinstance(error, RequestValidationError):
        status, kind = 400, "ConfigError"
        message = f"the request is not understood: {_validation_text(error.errors())}"
    elif isinstance(error, HTTPException):
        status, kind = error.status_code, "ConfigError"
        message = f"{request.method} {request.url.path}: {error.detail}"
    else:
        status, kind = 500, "InfrastructureError"
        message = "the service failed at this; its log says why"
    report = ErrorReport(error=kind, message=clients.hide_tokens(message))
    reply = _json(report.model_dump_json().encode(), status)
    if status == 429:
        reply.headers["Retry-After"] = str(RETRY_S)
    return reply


def _validation_text(errors: Iterable[Mapping[str, Any]]) -> str:
    """The findings of a pydantic error with their places, as text."""
    return "; ".join(f"{'.'.join(map(str, _place(each)))}: {each['msg']}" for each in errors)


def _place(error: Mapping[str, Any]) -> tuple[object, ...]:
    place: tuple[object, ...] = error["loc"]
    return place[1:] if place[:1] == ("body",) and len(place) > 1 else place
