"""The guard of every request, before anything of it is read: the token, and limits on its body."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pkb_gym.engine.records.service import ErrorReport
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES
from pkb_gym.serve.clients import Client, Clients

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * MAX_SOURCE_BYTES
"""Maximum size of a submission. A source may be too long, which its feedback then reports, and JSON spends up to six
bytes on a character."""

MAX_OTHER_BODY_BYTES = 4096
"""Maximum size of any other request: none of them has a body."""

BODY_S = 60.0
"""Maximum time in seconds for a body to arrive."""

SUBMISSION = ("POST", "/v1/evaluations")
DOCS, STATIC = "/docs", "/docs/static"
OPEN_PATHS = frozenset(
    {"/v1/health", "/openapi.json", DOCS}
    | {f"{STATIC}/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")}
)

CLIENT = "pkb_client"
"""Key in the scope of a request: the `Client` whose token it carries; absent on open paths."""


class Guard:
    """ASGI middleware that answers 401 without a token, 413 to a body that is too large, 408 to one that is too slow.

    Args:
        app: Application behind it.
        clients: Clients whose tokens requests carry as `Authorization: Bearer <token>`.
    """

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app, self._clients = app, clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if scope["path"] not in OPEN_PATHS:
            client = self._clients.authorized(given)
            if client is None:
                what = "the token is wrong" if given else "a token is needed: Authorization: Bearer <token>"
                await _refuse(send, 401, what)
                return
            scope[CLIENT] = client
        limit = MAX_BODY_BYTES if (scope["method"], scope["path"]) == SUBMISSION else MAX_OTHER_BODY_BYTES
        if _announced_bytes(headers) > limit:
            await _refuse(send, 413, f"the request has more than {limit} bytes")
            return
        try:
            body = await asyncio.wait_for(_read(receive, limit), BODY_S)
        except TimeoutError:
            await _refuse(send, 408, f"the request has not arrived within {BODY_S:g} s")
            return
        if body is None:
            await _refuse(send, 413, f"the request has more than {limit} bytes")
            return
        await self._app(scope, _Replay(body, receive), send)


def client_of(scope: Scope) -> Client:
    """The client whose request the guard let pass."""
    client = scope[CLIENT]
    assert isinstance(client, Client)
    return client


def _announced_bytes(headers: dict[bytes, bytes]) -> int:
    """The length that a request gives for its body; 0 where it gives none."""
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() else 0


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None as soon as it is too large, whatever its headers declare."""
    parts: list[bytes] = []
    nbytes = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        nbytes += len(parts[-1])
        if nbytes > limit:
            return None
        if not message.get("more_body", False):  # or the client has gone
            return b"".join(parts)


class _Replay:
    """Hands out a body that has been read, then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _refuse(send: Send, status: int, message: str) -> None:
    body = ErrorReport(error="ConfigError", message=message).model_dump_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    else:
        headers.append((b"connection", b"close"))  # the rest of what was sent is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
