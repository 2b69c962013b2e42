"""The evaluation service over HTTP.

    POST   /v1/evaluations              an `EvaluationRequest`; answered with an `EvaluationState`
    GET    /v1/evaluations/{id}?wait_s= its `EvaluationState`, once it has finished or after so many seconds
    DELETE /v1/evaluations/{id}         gives up interest in it
    GET    /v1/status                   a `ServiceStatus`
    POST   /v1/pause?wait_s=            leaves the devices to somebody else; a `PauseState`
    POST   /v1/resume                   ends the pause; a `PauseState`
    GET    /v1/health                   {"ok": true}; needs no token

What is refused is answered with an `ErrorReport`, whose `error` is the class that `RemoteEvaluator` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pkb_gym.engine.errors import (
    ConfigError,
    EvaluationNotFound,
    InfrastructureError,
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
)
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.guard import Guard
from pkb_gym.serve.service import EvaluationService

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

STATUSES: tuple[tuple[type[PkbError], int], ...] = (
    (ProblemNotFound, 404),
    (EvaluationNotFound, 404),
    (ServiceBusy, 429),
    (InfrastructureError, 503),
    (PkbError, 400),
)
"""Class of an error -> HTTP status; the first that fits counts."""


LOOK_S = 0.25
"""How often a request that waits looks whether the server is ending."""


def make_app(service: EvaluationService, token: str, ending: threading.Event) -> FastAPI:
    """The application.

    Args:
        service: who answers.
        token: that every request but /v1/health carries.
        ending: once it is set, requests are no longer kept waiting.
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    endpoints = _Endpoints(service, ending)
    # Without pages that describe it: they would be read without a token, and load scripts from elsewhere.
    app = FastAPI(title="pkb-gym evaluation service", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, token=token)
    for method, path, endpoint in (
        ("POST", "/v1/evaluations", endpoints.submit),
        ("GET", "/v1/evaluations/{evaluation_id}", endpoints.state),
        ("DELETE", "/v1/evaluations/{evaluation_id}", endpoints.give_up),
        ("GET", "/v1/status", endpoints.status),
        ("POST", "/v1/pause", endpoints.pause),
        ("POST", "/v1/resume", endpoints.resume),
        ("GET", "/v1/health", endpoints.health),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    for kind in (PkbError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refuse)
    return app


class _Endpoints:
    """One method for each path; those that may take a moment are no coroutines, and so run in threads."""

    def __init__(self, service: EvaluationService, ending: threading.Event) -> None:
        self._service, self._ending = service, ending

    def submit(self, request: dict[str, object]) -> Response:
        try:
            asked = EvaluationRequest.model_validate(request)
        except ValidationError as error:
            raise ConfigError(f"the request is not understood: {_validation_text(error.errors())}") from None
        evaluation_id = self._service.submit(asked)
        return _answer(_state(self._service.find(evaluation_id)), 202)

    async def state(self, evaluation_id: str, wait_s: float = 0.0) -> Response:
        evaluation = self._service.find(evaluation_id)
        until = time.monotonic() + min(wait_s, MAX_WAIT_S)
        answered, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake(_: Future[Feedback]) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(answered.set)

        evaluation.answer.add_done_callback(wake)
        while not answered.is_set() and not self._ending.is_set() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), min(left, LOOK_S))
        return _answer(_state(evaluation))

    def give_up(self, evaluation_id: str) -> Response:
        self._service.give_up(evaluation_id)
        return _json(b"{}")

    def status(self) -> Response:
        return _answer(self._service.status())

    def pause(self, wait_s: float = 0.0) -> Response:
        return _answer(PauseState(idle=self._service.pause(max(0.0, min(wait_s, MAX_WAIT_S)))))

    def resume(self) -> Response:
        self._service.resume()
        return _answer(PauseState(idle=False))

    async def health(self) -> Response:
        return _json(b'{"ok": true}')


def _state(evaluation: Evaluation) -> EvaluationState:
    """The record of it for a client.

    Raises:
        ConfigError, SizeError: the evaluator refused the request.
    """
    if not evaluation.answer.done():
        return EvaluationState(id=evaluation.id, state=evaluation.state)
    return EvaluationState(id=evaluation.id, state=FINISHED, feedback=evaluation.answer.result())


def _answer(record: Record, status: int = 200) -> Response:
    return _json(record.model_dump_json().encode(), status)


def _json(body: bytes, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(body, status, media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    """Any error as a record."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    if isinstance(error, PkbError):
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        report = ErrorReport(error=type(error).__name__, message=str(error))
    elif isinstance(error, RequestValidationError):
        status = 400
        text = f"the request is not understood: {_validation_text(error.errors())}"
        report = ErrorReport(error="ConfigError", message=text)
    elif isinstance(error, HTTPException):
        status = error.status_code
        report = ErrorReport(error="ConfigError", message=f"{request.method} {request.url.path}: {error.detail}")
    else:
        status = 500
        report = ErrorReport(error="InfrastructureError", message="the service failed at this; its log says why")
    return _json(report.model_dump_json().encode(), status)


def _validation_text(errors: Iterable[Mapping[str, Any]]) -> str:
    """What pydantic found wrong, and where."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)
