"""The output of the ranks of a gang on stdout and stderr."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.records.feedback import Failure

MAX_BYTES = 16 << 20
"""A gang that writes more is ended."""

KEPT_BYTES = 8192


class RankOutput:
    """The reading ends of pipes, one for each rank, that stdout and stderr of the rank lead to.

    Args:
        world_size: Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._lines: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._unfinished = [b""] * world_size
        self._total_bytes = 0
        self._reading: list[int] = []
        self._writing: list[int] = []
        try:
            for _ in range(world_size):
                reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._reading.append(reading)
                self._writing.append(writing)
        except OSError:
            self.close()
            raise

    @property
    def filenos(self) -> Sequence[int]:
        """The reading end of each rank, for selectors."""
        return tuple(self._reading)

    @contextlib.contextmanager
    def writing_ends(self) -> Iterator[Sequence[int]]:
        """The descriptors to hand to the ranks; closed here afterwards."""
        for fd in self._writing:
            os.set_blocking(fd, True)
        try:
            yield tuple(self._writing)
        finally:
            self._close_writing_ends()

    def _close_writing_ends(self) -> None:
        while self._writing:
            os.close(self._writing.pop())

    @property
    def tail(self) -> str:
        """The last `KEPT_BYTES`, the number of the rank in front of each line, in the order in which lines came."""
        unfinished = [(rank, line) for rank, line in enumerate(self._unfinished) if line]
        lines = [f"rank {rank}: {_text(line)}" for rank, line in (*self._lines, *unfinished)]
        return "".join(f"{line}\n" for line in lines)

    def tail_of(self, rank: int) -> str:
        """The lines of one rank among the tail, as it wrote them."""
        lines = [line for writer, line in self._lines if writer == rank]
        return "\n".join(_text(line) for line in (*lines, self._unfinished[rank]))

    def drain(self, rank: int) -> bool:
        """Reads what is there of a rank.

        Returns:
            Whether more can follow.

        Raises:
            GangFailed: the ranks wrote too much.
        """
        try:
            data = os.read(self._reading[rank], 1 << 20)
        except BlockingIOError:
            return True
        self._total_bytes += len(data)
        *lines, unfinished = (self._unfinished[rank] + data[-KEPT_BYTES:]).split(b"\n")
        self._unfinished[rank] = unfinished[-KEPT_BYTES:]
        for line in lines:
            self._keep(rank, line)
        if self._total_bytes > MAX_BYTES:
            limit = f"the ranks wrote more than {MAX_BYTES >> 20} MiB to stdout and stderr"
            raise GangFailed(Failure.RUNTIME_ERROR, None, limit)
        return bool(data)

    def drain_all(self) -> None:
        """Reads what is there of every rank, however much there was."""
        for rank in range(len(self._reading)):
            with contextlib.suppress(GangFailed):
                self.drain(rank)

    def _keep(self, rank: int, line: bytes) -> None:
        self._lines.append((rank, line[-KEPT_BYTES:]))
        self._kept_bytes += len(self._lines[-1][1]) + 1
        while self._kept_bytes > KEPT_BYTES and len(self._lines) > 1:
            self._kept_bytes -= len(self._lines.popleft()[1]) + 1

    def close(self) -> None:
        """Closes the reading ends, and the writing ends if they were not handed over."""
        while self._reading:
            os.close(self._reading.pop())
        self._close_writing_ends()


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
