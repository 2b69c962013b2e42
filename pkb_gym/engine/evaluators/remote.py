"""The evaluator that asks an evaluation service (`pkb serve`) over HTTP."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import threading
import time
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from pkb_gym.engine.errors import (
    ConfigError,
    InfrastructureError,
    PkbError,
)
from pkb_gym.engine.evaluators.connections import CONNECT_S, SOCKET, Connections
from pkb_gym.engine.evaluators.polling import Polling, growing_pauses, while_busy
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.service import (
    MAX_WAIT_S,
    ErrorReport,
    EvaluationRequest,
    EvaluationState,
    PauseState,
    ServiceStatus,
)
from pkb_gym.engine.records.source import as_sent
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.source_digest import source_sha256

Answer = TypeVar("Answer", bound=Record)

TIMEOUT_S = 900.0
UNREACHABLE_S = 30.0
GRACE_S = 10.0
"""Deadline of a reply, beyond the time that the service was asked to wait."""

MAX_PAUSE_S = 2.0
"""Between attempts."""

MACHINE = "/v1/machine"
"""Path of the description of the service's machine."""


class _Unreachable(Exception):
    """Raised when a request failed and may be repeated."""


def check_url(url: str) -> str:
    """The url of a service, without a slash at its end.

    Raises:
        ConfigError: It is none.
    """
    if url.startswith(f"{SOCKET}/"):
        return url
    parts = urlsplit(url)
    try:
        has_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        has_address = False
    if "@" in parts.netloc:  # and in no message
        raise ConfigError("the url of an evaluation service holds no name or password; its token is that of PKB_TOKEN")
    if not has_address:
        raise ConfigError(f"{url!r} is no url of an evaluation service; expected one like http://127.0.0.1:8900")
    return url.rstrip("/")


class RemoteEvaluator:
    """Has sources judged by an evaluation service; safe to use from several threads, and to pickle.

    No call waits without a deadline. A service that cannot be reached is tried again for `unreachable_s`, so that it
    may be started anew meanwhile; then, or when an evaluation takes longer than `timeout_s`, `InfrastructureError` is
    raised. (A `Feedback` records where an evaluation ran, which is unknown then.)

    Args:
        url: URL of the service, as `pkb serve` prints it: an address, or "unix:" and the path of a socket.
        token: Token of the service; by default the value of PKB_TOKEN, at the time of the request.
        timeout_s: Deadline of one evaluation in seconds, with waiting for others.
        unreachable_s: Seconds for which a service that does not answer is tried again.
        replay_key: Secret that, with the seed, fixes the inputs, for a service that takes it from its clients.

    Raises:
        ConfigError: The url is none.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        unreachable_s: float = UNREACHABLE_S,
        replay_key: bytes | None = None,
    ) -> None:
        self.url = check_url(url)
        self._token, self._timeout_s, self._unreachable_s = token, timeout_s, unreachable_s
        self._replay_key = None if replay_key is None else replay_key.hex()
        self._lock, self._describing = threading.Lock(), threading.Lock()
        self._connected: tuple[int, Connections] | None = None
        self._machine: Machine | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Connections and locks belong to a process."""
        return self.__dict__ | {"_lock": None, "_describing": None, "_connected": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._describing = threading.Lock(), threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteEvaluator({self.url!r})"

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Has one source judged by the service; see `Evaluator.evaluate`.

        Raises:
            ConfigError, SizeError, ProblemNotFound: The request makes no sense to the service.
            InfrastructureError: The service did not answer in time.
        """
        polling = Polling.starting_now(self.url, self._timeout_s, MAX_WAIT_S)
        request = self._request(problem, source, config)
        submitted = ""

        def submit(_: float) -> EvaluationState:
            nonlocal submitted
            state = while_busy(lambda: self._post(request, polling.deadline), polling.deadline, MAX_PAUSE_S)
            submitted = state.id
            return state

        try:
            found = polling.wait(
                submit, lambda state, wait_s: self._state(state.id, wait_s, polling.deadline), progress
            )
        except BaseException:
            if submitted:
                self._give_up(submitted)
            raise
        assert found.feedback is not None
        if request.source is source:
            return found.feedback
        return found.feedback.model_copy(update={"source_sha256": source_sha256(source)})

    def submit(self, problem: Problem, source: str, config: EvalConfig) -> str:
        """Has an evaluation begun, without waiting for it: a later `evaluate` of an equal request joins it.

        Returns:
            Id of the evaluation.

        Raises:
            ConfigError, SizeError, ProblemNotFound: The request makes no sense to the service.
            ServiceBusy: It has too much to do.
            InfrastructureError: It cannot be reached.
        """
        return self._post(self._request(problem, source, config), self._deadline()).id

    def status(self) -> ServiceStatus:
        """The state of the service.

        Raises:
            InfrastructureError: It cannot be reached.
        """
        return self._call("GET", "/v1/status", ServiceStatus, self._deadline())

    def machine(self) -> Machine:
        """The machine of the service; requested once, and again while its CPU is not measured yet.

        Raises:
            ConfigError: The service is of an earlier version, which does not describe its machine.
            InfrastructureError: It cannot be reached.
        """
        with self._describing:
            if self._machine is None or (self._machine.cpu or self._machine.gpu) is None:
                self._machine = self._call("GET", MACHINE, Machine, self._deadline())
            return self._machine

    def pause(self, timeout_s: float = TIMEOUT_S) -> None:
        """Has the service leave its devices to another program; returns when nothing runs there any more.

        Raises:
            InfrastructureError: It cannot be reached, or something still runs after `timeout_s`. Nothing new begins
                there all the same, until `resume`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(MAX_WAIT_S, deadline - time.monotonic()))
            endpoint = f"/v1/pause?wait_s={wait_s:.3f}"
            if self._call("POST", endpoint, PauseState, deadline, reply_s=wait_s).idle:
                return
            if time.monotonic() >= deadline:
                raise InfrastructureError(
                    f"{self.url} was asked to pause and still runs something after {timeout_s:g} s"
                )

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing.

        Raises:
            InfrastructureError: The service cannot be reached.
        """
        self._call("POST", "/v1/resume", PauseState, self._deadline())

    def close(self) -> None:
        """Closes the connections; the service goes on. They are made anew if it is used again."""
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None and connected[0] == os.getpid():
            connected[1].close()

    def _request(self, problem: Problem, source: str, config: EvalConfig) -> EvaluationRequest:
        sent = as_sent(source)
        return EvaluationRequest(problem=problem.name, source=sent, config=config, replay_key=self._replay_key)

    def _deadline(self) -> float:
        return time.monotonic() + self._unreachable_s

    def _post(self, request: EvaluationRequest, deadline: float) -> EvaluationState:
        # Not pydantic's own JSON, which cannot carry lone surrogates: a source with them is rejected by the evaluation.
        content = json.dumps(request.model_dump(mode="python")).encode()
        return self._call("POST", "/v1/evaluations", EvaluationState, deadline, content=content)

    def _state(self, evaluation_id: str, wait_s: float, deadline: float) -> EvaluationState:
        endpoint = f"/v1/evaluations/{evaluation_id}?wait_s={wait_s:.3f}"
        return self._call("GET", endpoint, EvaluationState, deadline + GRACE_S, reply_s=wait_s)

    def _give_up(self, evaluation_id: str) -> None:
        try:
            self._once("DELETE", f"/v1/evaluations/{evaluation_id}", None, CONNECT_S)
        except (_Unreachable, PkbError):
            return  # then no service is left to notify

    def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        deadline: float,
        *,
        content: bytes | None = None,
        reply_s: float = 0.0,
    ) -> Answer:
        """One request, repeated while the service cannot be reached."""
        until: float | None = None
        timeout_s = reply_s + GRACE_S
        for pause_s in growing_pauses(MAX_PAUSE_S):
            try:
                body = self._once(method, path, content, timeout_s)
            except _Unreachable as error:
                until = min(deadline, self._deadline()) if until is None else until
                timeout_s = min(timeout_s, until - time.monotonic() - pause_s)
                if timeout_s <= 0:
                    raise InfrastructureError(f"the evaluation service {self.url} cannot be reached: {error}") from None
                time.sleep(pause_s)
                continue
            try:
                return kind.model_validate_json(body)
            except ValidationError as error:
                raise InfrastructureError(
                    f"{self.url} answers with no {kind.__name__}; is it an evaluation service of this version? {error}"
                ) from None
        raise AssertionError("pauses never end")

    def _once(self, method: str, path: str, content: bytes | None, reply_s: float) -> bytes:
        """One request; returns the body of a success.

        Raises:
            _Unreachable: The request failed.
            PkbError: It was refused.
        """
        token = self._token or env_vars.service_token()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            status, body = self._connections().request(method, path, content, headers, reply_s)
        except (OSError, http.client.HTTPException) as error:
            raise _Unreachable(f"{type(error).__name__}: {error}") from None
        if 200 <= status < 300:
            return body
        if status == 404 and path == MACHINE:
            version = importlib.metadata.version("pkb-gym")
            raise ConfigError(
                f"{self.url} does not describe its machine (GET {MACHINE}), on which task texts and device='auto' "
                f"depend: it runs an earlier version than this pkb-gym {version}; install one version on both machines"
            )
        raise self._refusal(status, body)

    def _refusal(self, status_code: int, body: bytes) -> Exception:
        try:
            report = ErrorReport.model_validate_json(body)
        except ValidationError:
            text = body[:200].decode(errors="replace")
            report = ErrorReport(error="", message=f"{self.url} answered with HTTP status {status_code}: {text}")
        if status_code == 401:
            return ConfigError(f"{self.url}: {report.message}; set PKB_TOKEN to what its token file holds")
        if status_code in (502, 503, 504):  # it is being started or ended
            return _Unreachable(report.message)
        return report.exception()

    def _connections(self) -> Connections:
        """The connections of this process: a forked child must not use its parent's."""
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = (os.getpid(), Connections(self.url))
            return self._connected[1]
