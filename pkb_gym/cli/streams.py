"""The standard streams of a process that is `pkb`, as a shell, a service manager or a full disk may have left them.

Results go to standard output, where a write that fails ends the command as an infrastructure failure. What goes to
standard error decides nothing: where it cannot be written it is lost, and the evaluation goes on.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import InfrastructureError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ESCAPES = "pkb-escapes"
"""Name of the handler that writes characters which an encoding lacks as the escapes of JSON."""


class _Results(io.FileIO):
    """Standard output: the first write that fails is an error with words, and what is left in buffers is lost."""

    has_failed = False

    def write(self, data: ReadableBuffer) -> int:
        if self.has_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.has_failed = True
            raise InfrastructureError(f"cannot write standard output: {error.strerror}") from None


class _Diagnostics(io.FileIO):
    """Standard error: a failed write is passed over."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Replaces the standard streams of this process.

    A stream that the caller has closed is opened so that its use fails: Python leaves None in its place, and the next
    file or socket would get its number and what is printed.
    """
    for fd, useless in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, useless)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # as long as the process
    codecs.register_error(ESCAPES, _escaped)
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    sys.stdout = _text(_Results(1, "w", closefd=False), encoding, ESCAPES)
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = _text(_Diagnostics(2, "w", closefd=False), encoding, "backslashreplace", line_buffering=True)


def _text(raw: io.FileIO, encoding: str, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding, errors, line_buffering=line_buffering or raw.isatty())


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """The escapes of the characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escapes = (f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return "".join(escapes), error.end
