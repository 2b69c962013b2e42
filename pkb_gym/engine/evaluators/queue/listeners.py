"""Notification of threads and event loops about changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence


class Listeners:
    """Functions that are called at each change; safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def calling(self, function: Callable[[], None]) -> Iterator[None]:
        """Has a function called at each change while the block runs."""
        with self._lock:
            self._functions.append(function)
        try:
            yield
        finally:
            with self._lock:
                self._functions.remove(function)

    @property
    def has_listeners(self) -> bool:
        """Whether there is anybody to call."""
        return bool(self._functions)

    def notify(self) -> None:
        """Reports a change."""
        with self._lock:
            functions = tuple(self._functions)
        for function in functions:
            function()


class Flag(Listeners):
    """An event that is set once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False

    def set(self) -> None:
        """Sets the flag; calling it again changes nothing."""
        self.is_set = True
        self.notify()


async def wait_until(condition: Callable[[], bool], sources: Sequence[Listeners], timeout_s: float) -> None:
    """Waits in an event loop until a condition holds or the time has passed.

    Args:
        condition: Evaluated at the start and after each change.
        sources: Listeners that are notified when the condition may have changed.
        timeout_s: Longest wait in seconds.
    """
    if condition():
        return
    loop, changed, deadline_s = asyncio.get_running_loop(), asyncio.Event(), time.monotonic() + timeout_s

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(changed.set)

    with contextlib.ExitStack() as stack:
        for source in sources:
            stack.enter_context(source.calling(wake))
        while not condition() and (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left_s)
            changed.clear()
