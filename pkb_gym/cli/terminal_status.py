"""A status line on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from .command import stderr


class TerminalStatus:
    """A spinner with a text on stderr while the context lasts; none where stderr is no terminal.

    Args:
        text: First text to show.

    Attributes:
        console: Console of stderr.
    """

    def __init__(self, text: str) -> None:
        self.console = stderr()
        self._status = self.console.status(text) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> bool:
        """Replaces the text; returns whether there is a terminal that shows it."""
        if self._status is not None:
            self._status.update(text)
        return self._status is not None
