"""Connections to an evaluation service over HTTP/1.1, kept for the next request.

By the standard library, which loads in a fraction of the time that packages for HTTP take: a command asks three times.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from pkb_gym.engine.errors import InfrastructureError

SOCKET = "unix:"
"""Before the path of a socket, in the url of a service of this machine."""

CONNECT_S = 5.0
MAX_IDLE = 32

MAX_REPLY_BYTES = 64 << 20
"""A feedback has kilobytes, a traced one megabytes."""


class Connections:
    """The connections of one process to one service; safe to use from several threads.

    Args:
        url: URL of the service; proxies of the environment are not asked, as they would see the token.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self._prefix = "" if url.startswith(SOCKET) else url.removeprefix(f"{parts.scheme}://{parts.netloc}")
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], reply_s: float
    ) -> tuple[int, bytes]:
        """One request; its status and the body of the reply.

        Args:
            method: Method of HTTP.
            path: Path of the request, with the query.
            content: Body of the request; None for none.
            headers: Headers of the request.
            reply_s: Seconds for which the service may be silent once it is connected.

        Raises:
            OSError, http.client.HTTPException: The request failed.
            InfrastructureError: The reply is longer than any of the service's.
        """
        connection = self._take()
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(reply_s)
            connection.request(method, self._prefix + path, content, dict(headers))
            reply = connection.getresponse()
            status, body = reply.status, reply.read(MAX_REPLY_BYTES + 1)
            if len(body) > MAX_REPLY_BYTES:
                raise InfrastructureError(f"{self._url} answers with more than {MAX_REPLY_BYTES} bytes")
        except BaseException:
            connection.close()
            raise
        self._put_back(connection)
        return status, body

    def close(self) -> None:
        """Closes those that are not in use, and the others once they are not; calling it again changes nothing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._new()
            # Data before any request is the end of the connection.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _new(self) -> http.client.HTTPConnection:
        if self._url.startswith(SOCKET):
            return _ToSocket(self._url.removeprefix(SOCKET))
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=CONNECT_S)


class _ToSocket(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        with contextlib.ExitStack() as stack:
            connected = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connected.settimeout(CONNECT_S)
            connected.connect(self._path)
            stack.pop_all()
        self.sock = connected
