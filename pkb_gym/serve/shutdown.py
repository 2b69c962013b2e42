"""The shutdown of a server, for requests that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ShutdownEvent:
    """The event that a server shuts down: set once, it calls its waiters; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], None]] = set()
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether the server ends."""
        return self._is_set

    def set(self) -> None:
        """Ends every wait; calling it again changes nothing."""
        with self._lock:
            self._is_set = True
            waiting = list(self._waiting)
        for wake in waiting:
            wake()

    @contextmanager
    def calling(self, wake: Callable[[], None]) -> Iterator[None]:
        """Has a function called by `set` while the block runs, at once where it is set already."""
        with self._lock:
            self._waiting.add(wake)
        if self._is_set:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(wake)
