"""Threads for tests of what waits for what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.waiting import PATIENCE_S

A_MOMENT_S = 0.05
"""Long enough for a thread that is not held back to do what it must not."""


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def running(name: str) -> list[threading.Thread]:
    """The threads of that name."""
    return [thread for thread in threading.enumerate() if thread.name == name]


class Visitor:
    """Enters in a thread, and stays until released."""

    def __init__(self, enter: AbstractContextManager[object]) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._enter = enter
        self._thread = in_thread(self._visit)

    def _visit(self) -> None:
        with self._enter:
            self.inside.set()
            assert self._leave.wait(PATIENCE_S)

    @property
    def came_in(self) -> bool:
        """Whether it comes in before a while has passed."""
        return self.inside.wait(PATIENCE_S)

    @property
    def is_kept_out(self) -> bool:
        """Whether it does not come in for a moment."""
        return not self.inside.wait(A_MOMENT_S)

    def leave(self) -> None:
        """Lets it go, once it has come in."""
        self._leave.set()
        joined(self._thread)
