"""Progress of a command on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from .command import stderr


class StageProgress:
    """Called with a few words whenever a stage begins: a spinner on a terminal, a line each elsewhere.

    Used as a context manager around the work.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = stderr()
        self._status = self._console.status(title) if sys.stderr.isatty() else None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, words: str) -> None:
        """A stage begins."""
        if self._status is not None:
            self._status.update(f"{self._title}: {words}")
        else:
            self._console.print(f"{time.monotonic() - self._began:6.1f} s  {self._title}: {words}", soft_wrap=True)
