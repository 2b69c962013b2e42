"""Every HTTP request, as metrics and logs count it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pkb_gym.serve.guard import CLIENT

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNKNOWN = "unknown"
"""The route of a request that no path of the service fits, or that did not pass the guard."""


@dataclass(frozen=True)
class HandledRequest:
    """A request and its reply.

    Attributes:
        method: Method of HTTP.
        route: Path with the names of its parameters, or `UNKNOWN`.
        status: Status of HTTP; 499 where the client went before it.
        client: Name of the client; None where no token was needed or none was right.
        duration_s: Seconds from the first byte read to the last sent, with long polls.
    """

    method: str
    route: str
    status: int
    client: str | None
    duration_s: float


class RequestObserver:
    """ASGI middleware that reports each request once it is answered.

    Args:
        app: Application behind it.
        report: Function called with each request.
    """

    def __init__(self, app: ASGIApp, report: Callable[[HandledRequest], None]) -> None:
        self._app, self._report = app, report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 499

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            client = scope.get(CLIENT)
            self._report(
                HandledRequest(
                    method=scope["method"],
                    route=getattr(scope.get("route"), "path", UNKNOWN),
                    status=status,
                    client=None if client is None else client.name,
                    duration_s=time.monotonic() - began,
                )
            )
