"""What the ranks of a gang write to stdout and stderr."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.records.feedback import Failure

MAX_BYTES = 16 << 20
"""A gang that writes more is ended."""

KEPT_BYTES = 8192


class RankOutput:
    """The reading end of a pipe that all ranks write to."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._total_bytes = 0
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """For selectors."""
        return self._reading

    @contextlib.contextmanager
    def writing_end(self) -> Iterator[int]:
        """The descriptor to hand to the ranks; closed here afterwards."""
        os.set_blocking(self._writing, True)
        try:
            yield self._writing
        finally:
            self._close_writing_end()

    def _close_writing_end(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    @property
    def tail(self) -> str:
        """The last `KEPT_BYTES` of it."""
        return bytes(self._tail).decode(errors="replace")

    def drain(self) -> bool:
        """Reads what is there.

        Returns:
            Whether more can follow.

        Raises:
            GangFailed: it is too much.
        """
        try:
            data = os.read(self._reading, 1 << 20)
        except BlockingIOError:
            return True
        self._total_bytes += len(data)
        self._tail = (self._tail + data)[-KEPT_BYTES:]
        if self._total_bytes > MAX_BYTES:
            limit = f"the ranks wrote more than {MAX_BYTES >> 20} MiB to stdout and stderr"
            raise GangFailed(Failure.RUNTIME_ERROR, None, limit)
        return bool(data)

    def close(self) -> None:
        """Closes the reading end, and the writing end if it was not handed over."""
        os.close(self._reading)
        self._close_writing_end()
