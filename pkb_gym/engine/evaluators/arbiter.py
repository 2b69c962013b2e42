"""Arbitration of this machine's devices: candidates one at a time, preparations and timings never together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class DeviceArbiter:
    """Keeps apart what would disturb each other on the devices.

    - One candidate at a time has them (`acquire`, `release`).
    - Preparing and ending gangs (`preparing`) never runs while something is timed (`timing`). Any number of
      preparations run at once, or one timing; a timing that waits goes first.
    - While paused, no candidate gets the devices and no preparation begins, so that another program may have them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._shut = False
        self._timing = 0
        self._waiting = 0
        self._preparing = 0
        self._preparations_paused = False

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the devices for a candidate.

        Args:
            blocking: whether to wait until they are free and nothing is paused.

        Returns:
            Whether they are the caller's now.
        """
        with self._changed:
            if not blocking and not self._is_free():
                return False
            self._changed.wait_for(self._is_free)
            self._held = True
            return True

    def release(self) -> None:
        """Hands the devices back."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return not self._held and not self._shut

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Waits until no preparation runs, and keeps new ones from beginning."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._preparing and not self._timing)
                self._timing += 1
            finally:  # Ctrl-C while waiting must not keep preparations out for good
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._timing -= 1
                self._changed.notify_all()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Waits until nothing is timed or waits to be."""
        with self._changed:
            self._changed.wait_for(lambda: not self._timing and not self._waiting and not self._preparations_paused)
            self._preparing += 1
        try:
            yield
        finally:
            with self._changed:
                self._preparing -= 1
                self._changed.notify_all()

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to another program until `resume`, and waits for the work on them to end.

        Candidates are kept out first: the one that has the devices may still need a gang, and has it ended in the
        background.

        Args:
            timeout_s: how long to wait; None for as long as it takes. Nothing new begins either way.

        Returns:
            Whether nothing uses the devices any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._shut = True
            if not self._changed.wait_for(lambda: not self._held, timeout_s):
                return False
            self._preparations_paused = True
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: not self._preparing, left)

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        with self._changed:
            self._shut = self._preparations_paused = False
            self._changed.notify_all()
