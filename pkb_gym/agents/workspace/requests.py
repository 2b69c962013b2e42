"""The socket of a workspace: requests of `./evaluate` and `./submit`, one at a time, and the replies to them.

Whatever connects is untrusted. A request has a bounded length and a deadline; a malformed one is refused and costs
nothing. Further clients wait in the socket's queue.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pkb_gym.agents.workspace.client import REFUSED, SOCKET
from pkb_gym.engine.records.base import Record, Text
from pkb_gym.engine.records.config import RaceCheck, Until
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES
from pkb_gym.serve.user_socket import listening_at

MAX_REQUEST_BYTES = 8 * MAX_SOURCE_BYTES
"""Length of a request: JSON escapes of a source take up to six bytes for one."""

REQUEST_S = 5.0
"""Deadline in seconds of sending a request, and of reading its reply."""

Status = Literal[0, 1, 2, 3]
"""Exit status of the client: passed, wrong, refused, not judged."""


class WorkspaceRequest(Record):
    """A request of a client."""

    action: Literal["evaluate", "submit"]
    """Program that sends it."""
    file: str = Field(default="", max_length=255)
    """Name of the file that holds the source."""
    source: Text
    """Source of the kernel."""
    until: Until | None = None
    """Last stage; None for that of the run."""
    race: RaceCheck | None = None
    """Whether the race detector judges; None for the choice of the run."""


@dataclass(frozen=True)
class Call:
    """A request that waits for its reply.

    Attributes:
        request: Request as it was sent.
    """

    request: WorkspaceRequest
    _connection: socket.socket

    def reply(self, status: Status, text: str, feedback: Feedback | None = None) -> None:
        """Replies, unless the client has gone.

        Args:
            status: Exit status of the client.
            text: Text for the agent.
            feedback: Feedback record, for `--json`.
        """
        _reply(self._connection, status, text, feedback)

    def close(self) -> None:
        """Closes the connection, which `reply` does too."""
        self._connection.close()


class WorkspaceSocket:
    """The listening socket of one workspace.

    Args:
        listener: Socket that listens.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def next_call(self, timeout_s: float) -> Call | None:
        """The next request; None where none came, or one that was refused.

        Args:
            timeout_s: Time in seconds that is waited for a client.
        """
        if not select.select([self._listener], [], [], timeout_s)[0]:
            return None
        connection, _ = self._listener.accept()
        try:
            return Call(_parse(_read(connection)), connection)
        except (ValueError, RecursionError) as error:
            _reply(connection, REFUSED, f"the request was refused: {error}")
        except OSError:  # the client has gone
            connection.close()
        return None


@contextlib.contextmanager
def workspace_socket(workspace: Path) -> Iterator[WorkspaceSocket]:
    """Listens in a workspace until the block ends.

    Raises:
        ConfigError: The socket cannot be made.
    """
    with listening_at(workspace / SOCKET) as listener:
        yield WorkspaceSocket(listener)


def _read(connection: socket.socket) -> bytes:
    """All that a client sends.

    Raises:
        ValueError: The request is too long, or was not sent in time.
        OSError: The client has gone.
    """
    deadline = time.monotonic() + REQUEST_S
    parts: list[bytes] = []
    length = 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ValueError(f"it was not sent within {REQUEST_S:g} s")
        connection.settimeout(left)
        try:
            part = connection.recv(1 << 16)
        except TimeoutError:
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        length += len(part)
        if length > MAX_REQUEST_BYTES:
            raise ValueError(f"it is longer than {MAX_REQUEST_BYTES} bytes")


def _parse(content: bytes) -> WorkspaceRequest:
    """A request.

    Raises:
        ValueError: It is none, or its source is too long.
    """
    try:
        request = WorkspaceRequest.model_validate(json.loads(content))
    except ValidationError as error:
        raise ValueError(_first_complaint(error)) from None
    length = len(request.source.encode("utf-8", "surrogatepass"))
    if length > MAX_SOURCE_BYTES:
        raise ValueError(f"the source is longer than {MAX_SOURCE_BYTES} bytes")
    return request


def _first_complaint(error: ValidationError) -> str:
    wrong = error.errors()[0]
    place: Sequence[object] = wrong["loc"]
    return f"{'.'.join(map(str, place)) or 'the request'}: {wrong['msg']}"


def _reply(connection: socket.socket, status: int, text: str, feedback: Feedback | None = None) -> None:
    record = None if feedback is None else feedback.model_dump(mode="json")
    content = json.dumps({"status": status, "text": text, "feedback": record}).encode()
    with connection, contextlib.suppress(OSError):
        connection.settimeout(REQUEST_S)
        connection.sendall(content)
