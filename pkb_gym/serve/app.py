"""The evaluation service over HTTP: its requests, their records, and the errors that answer the others.

The service describes itself at /openapi.json, and as a page at /docs; docs/serve.md has the requests in a table.
A refused request is answered with an `ErrorReport`, whose `error` is the class that `RemoteEvaluator` raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

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
from pkb_gym.engine.evaluators.queue.listeners import Flag, wait_until
from pkb_gym.engine.evaluators.remote import MACHINE
from pkb_gym.engine.records.machine import Machine
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
from pkb_gym.serve.clients import Clients
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.event_log import EventLog
from pkb_gym.serve.guard import DOCS, STATIC, Guard, client_of
from pkb_gym.serve.prometheus_metrics import CONTENT_TYPE, Metrics
from pkb_gym.serve.request_observer import HandledRequest, RequestObserver
from pkb_gym.serve.service import EvaluationService

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
"""HTTP status -> reason, for the description."""

RETRY_S = 1
"""Seconds until the next try, in the header of a 429."""

FROM_HERE_ALONE = "default-src 'self' 'unsafe-inline'; img-src 'self' data:"
"""Content-Security-Policy of the page: a browser loads nothing from elsewhere."""


@dataclass(frozen=True)
class Telemetry:
    """The observers of the service.

    Attributes:
        metrics: Metrics for Prometheus.
        events: The log.
    """

    metrics: Metrics = field(default_factory=Metrics)
    events: EventLog = field(default_factory=EventLog)

    def handled(self, request: HandledRequest) -> None:
        """Reports an HTTP request to both."""
        self.metrics.handled(request)
        self.events.handled(request)


@dataclass(frozen=True)
class _Parts:
    """The parts of an application that requests need; in its state."""

    service: EvaluationService
    shutdown: Flag
    metrics: Metrics


def make_app(service: EvaluationService, clients: Clients, shutdown: Flag, telemetry: Telemetry) -> FastAPI:
    """The application.

    Args:
        service: The service that answers.
        clients: Clients whose tokens requests carry.
        shutdown: Set when requests are no longer kept waiting.
        telemetry: Function called with each request.
    """
    telemetry.metrics.watch(service)
    # Requests without sense are answered with 400: "default" stands in the description in place of FastAPI's own 422.
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReport, "description": when} for status, when in REFUSALS.items()
    }
    refusals["default"] = {"model": ErrorReport, "description": "the service failed at this"}
    # Without FastAPI's own pages, which load scripts from elsewhere.
    app = FastAPI(
        title="pkb-gym evaluation service", version=__version__, docs_url=None, redoc_url=None, responses=refusals
    )
    app.state.parts = _Parts(service, shutdown, telemetry.metrics)
    app.add_middleware(Guard, clients=clients)
    app.add_middleware(RequestObserver, report=telemetry.handled)
    app.include_router(with_token)
    app.include_router(without_token)
    app.mount(STATIC, StaticFiles(packages=[("fastapi_offline", "static")]))

    async def refuse(request: Request, error: Exception) -> Response:
        return _refuse(request, error, clients)

    for kind in (PkbError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, refuse)
    return app


with_token = APIRouter(dependencies=[Security(HTTPBearer(scheme_name="token", auto_error=False))])
without_token = APIRouter()

# Requests that may take a moment are no coroutines, and so run in threads.


@with_token.post("/v1/evaluations", status_code=202)
def submit(requested: EvaluationRequest, request: Request) -> EvaluationState:
    """Has a source evaluated, or joins the evaluation of an equal request."""
    return _state(_parts(request).service.submit(requested, client_of(request.scope)))


@with_token.get("/v1/evaluations/{evaluation_id}")
async def state(
    evaluation_id: str, request: Request, wait_s: float = 0.0, reward: str | None = None
) -> EvaluationState:
    """The state of an evaluation, once it has finished or `wait_s` (at most 30) has passed.

    With the name of a preset as `reward`, the reward too.
    """
    # Of the presets alone, as other names of rewards import modules.
    if reward is not None and reward not in PRESETS:
        raise ConfigError(f"no preset of rewards {reward!r}; expected one of {', '.join(PRESETS)}")
    parts = _parts(request)
    evaluation = parts.service.find(evaluation_id, client_of(request.scope))
    await wait_until(
        lambda: evaluation.answer is not None or parts.shutdown.is_set,
        (evaluation.changed, parts.shutdown),
        min(wait_s, MAX_WAIT_S),
    )
    found = _state(evaluation)
    if reward is None or found.feedback is None:
        return found
    return found.model_copy(update={"reward": PRESETS[reward](found.feedback)})


@with_token.delete("/v1/evaluations/{evaluation_id}")
def give_up(evaluation_id: str, request: Request) -> dict[str, str]:
    """Takes a submission back; what no other client asks for never begins, or ends before its next stage."""
    _parts(request).service.give_up(evaluation_id, client_of(request.scope))
    return {}


@with_token.get("/v1/status")
def status(request: Request) -> ServiceStatus:
    """The state of the service, and its counts."""
    return _parts(request).service.status()


@with_token.get(MACHINE)
def machine(request: Request) -> Machine:
    """The machine that judges: devices, compilers, libraries and peaks, for task texts and `device="auto"`."""
    return _parts(request).service.machine()


@with_token.post("/v1/pause")
def pause(request: Request, wait_s: float = 0.0) -> PauseState:
    """Leaves the devices to another program; waits `wait_s` (at most 30) until nothing runs there."""
    _check_may_pause(request)
    return PauseState(idle=_parts(request).service.pause(max(0.0, min(wait_s, MAX_WAIT_S))))


@with_token.post("/v1/resume")
def resume(request: Request) -> PauseState:
    """Ends a pause."""
    _check_may_pause(request)
    _parts(request).service.resume()
    return PauseState(idle=False)


@with_token.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """The metrics, in the text format of Prometheus."""
    return Response(_parts(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE})


@without_token.get("/v1/health")
async def health() -> dict[str, bool]:
    """Whether the service answers."""
    return {"ok": True}


@without_token.get(DOCS, include_in_schema=False)
async def docs(request: Request) -> Response:
    """The description as a page, whose scripts come from this service."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=request.app.title,
        swagger_js_url=f"{STATIC[1:]}/swagger-ui-bundle.js",
        swagger_css_url=f"{STATIC[1:]}/swagger-ui.css",
        swagger_favicon_url=f"{STATIC[1:]}/favicon.png",
    )
    page.headers["Content-Security-Policy"] = FROM_HERE_ALONE
    return page


def _parts(request: Request) -> _Parts:
    parts = request.app.state.parts
    assert isinstance(parts, _Parts)
    return parts


def _check_may_pause(request: Request) -> None:
    client = client_of(request.scope)
    if not client.may_pause:
        raise PermissionRefused(f"client {client.name} may not pause this service; its entry needs may_pause = true")


def _state(evaluation: Evaluation) -> EvaluationState:
    """The record of an evaluation for a client.

    Raises:
        ConfigError, SizeError: The evaluator refused the request.
        InfrastructureError: The service ends before the evaluation.
    """
    answer = evaluation.answer
    if isinstance(answer, PkbError):
        raise answer
    return EvaluationState(id=evaluation.id, state=evaluation.state if answer is None else FINISHED, feedback=answer)


def _refuse(request: Request, error: Exception, clients: Clients) -> Response:
    """Any error as a record, without tokens."""
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
        message = "the service failed at this; see its log"
    report = ErrorReport(error=kind, message=clients.hide_tokens(message))
    headers = {"Retry-After": str(RETRY_S)} if status == 429 else None
    return Response(report.model_dump_json(), status, headers, media_type="application/json")


def _validation_text(errors: Iterable[Mapping[str, Any]]) -> str:
    """The findings of a pydantic error with their places, as text."""
    return "; ".join(f"{'.'.join(map(str, _place(each)))}: {each['msg']}" for each in errors)


def _place(error: Mapping[str, Any]) -> tuple[object, ...]:
    place: tuple[object, ...] = error["loc"]
    return place[1:] if place[:1] == ("body",) and len(place) > 1 else place
