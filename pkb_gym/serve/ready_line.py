"""The line that a service prints on standard output when it listens, as its writer and its readers see it.

Writers may write a line in several pieces (with PYTHONUNBUFFERED, `print` does). A reader that goes away after the
first piece ends the writer by a broken pipe, so that both sides handle whole lines.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from pkb_gym.engine.records.base import Record

MAX_BYTES = 1 << 16
"""Longest line that is read."""


class ReadyLine(Record):
    """A service that listens."""

    url: str
    pid: int
    token_file: str


def print_ready(line: ReadyLine) -> None:
    """Writes the line to standard output in one piece."""
    sys.stdout.write(json.dumps(line.model_dump()) + "\n")
    sys.stdout.flush()


def read_ready(fd: int, timeout_s: float) -> ReadyLine | None:
    """Reads the line from a pipe.

    Args:
        fd: Descriptor of the reading end; it stays open.
        timeout_s: Longest wait in seconds.

    Returns:
        The line; None where the writer closed its end before the line was complete.

    Raises:
        TimeoutError: There is no whole line after `timeout_s`.
        ValueError: The line is something else.
    """
    deadline = time.monotonic() + timeout_s
    read = b""
    while not read.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"no whole line after {timeout_s:g} s")
        # Byte by byte: what follows the line is the caller's.
        piece = os.read(fd, 1)
        if not piece:
            return None
        read += piece
        if len(read) > MAX_BYTES:
            raise ValueError(f"the line is longer than {MAX_BYTES} bytes")
    return ReadyLine.model_validate_json(read)
