"""What every request has to pass before anything of it is read: the token, and a limit on its size."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from pkb_gym.engine.records.service import ErrorReport
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * MAX_SOURCE_BYTES
"""A source may be too long, which its feedback then says, and JSON spends up to six bytes on a character."""

OPEN_PATHS = frozenset({"/v1/health"})


class Guard:
    """ASGI middleware that answers 401 without the token and 413 to a body that is too large.

    Args:
        app: what lies behind it.
        token: that requests carry as `Authorization: Bearer <token>`.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if scope["path"] not in OPEN_PATHS and not hmac.compare_digest(given, self._expected):
            what = "the token is wrong" if given else "a token is needed: Authorization: Bearer <token>"
            await _refuse(send, 401, "ConfigError", what)
            return
        body = await _read(receive)
        if body is None:
            await _refuse(send, 413, "ConfigError", f"the request has more than {MAX_BODY_BYTES} bytes")
            return
        await self._app(scope, _Replay(body, receive), send)


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None as soon as it is too large, whatever its headers say."""
    parts: list[bytes] = []
    nbytes = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        nbytes += len(parts[-1])
        if nbytes > MAX_BODY_BYTES:
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


async def _refuse(send: Send, status: int, error: str, message: str) -> None:
    body = ErrorReport(error=error, message=message).model_dump_json().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    else:
        headers.append((b"connection", b"close"))  # the rest of what was sent is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
