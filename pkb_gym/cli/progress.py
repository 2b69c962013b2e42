"""Progress of a command on stderr."""

from __future__ import annotations

import time

from .terminal_status import TerminalStatus


class StageProgress(TerminalStatus):
    """Called with the name of each stage as it begins: a spinner on a terminal, a line each elsewhere.

    Used as a context manager around the work.
    """

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._title = title
        self._began = time.monotonic()

    def __call__(self, stage: str) -> None:
        """A stage begins."""
        text = f"{self._title}: {stage}"
        if not self.show(text):
            self.console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", soft_wrap=True)
