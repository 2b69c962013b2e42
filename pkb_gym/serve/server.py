"""The HTTP server of an evaluation service, in a thread."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from pathlib import Path
from typing import Self

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.connections import SOCKET
from pkb_gym.engine.evaluators.queue.listeners import Flag
from pkb_gym.serve.app import Telemetry, make_app
from pkb_gym.serve.clients import Clients
from pkb_gym.serve.service import EvaluationService
from pkb_gym.serve.user_socket import listening_at

GRACE_S = 2
"""Seconds that open requests are given when the server ends."""

KEEP_ALIVE_S = 60
"""Longer than clients keep unused connections, so that theirs are not closed while they send."""

START_S = 10.0
BACKLOG = 2048
MAX_PORT = 65535


class HttpServer:
    """Serves while its block runs.

    Args:
        service: Service that answers.
        clients: Clients whose tokens requests carry; a token stands for one client without quotas.
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        path: Path of a socket to listen on instead, which this user alone may connect to; removed in the end.
        telemetry: Function called with each request.

    Attributes:
        url: URL of the server.
        ended: Set when it serves no longer, whatever the reason.

    Raises:
        ConfigError: The address cannot be had.
    """

    def __init__(
        self,
        service: EvaluationService,
        clients: Clients | str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        path: Path | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        import uvicorn

        self._shutdown = Flag()
        senders = Clients.sole(clients) if isinstance(clients, str) else clients
        app = make_app(service, senders, self._shutdown, telemetry or Telemetry())
        self._resources = contextlib.ExitStack()
        if path is None:
            self._socket = self._resources.enter_context(_listen(host, port))
            name = f"[{host}]" if ":" in host else host
            self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        else:
            self._socket = self._resources.enter_context(listening_at(path))
            self.url = f"{SOCKET}{path}"
        self.ended = threading.Event()
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="pkb-http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if self.ended.is_set() or time.monotonic() > deadline:
                self.__exit__()
                raise InfrastructureError(f"the HTTP server did not start at {self.url}")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._shutdown.set()
        self._server.should_exit = True
        self._thread.join()
        self._resources.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.ended.set()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"cannot listen on port {port}: expected 0 (any that is free) to {MAX_PORT}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it. Without, the body of a reply waits 40 ms for the client to acknowledge its headers;
        # asyncio leaves it unset, since the protocol of this socket is the default one and not named.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error}") from None
