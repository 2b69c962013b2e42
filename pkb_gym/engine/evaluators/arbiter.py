"""Arbitration of this machine's devices: timed candidates one at a time, other work never beside a timing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JUST_TAKEN_S = 0.05
"""Time in seconds, after a candidate took the devices, in which a gang for later ones may be begun: it is ready when
the candidate has been checked, about, while one that is begun later would be waited for."""


class DeviceArbiter:
    """Keeps apart what would disturb each other on the devices.

    - One candidate at a time has them (`acquire`, `release`). Those that are only checked (`checking`) run beside it
      and each other, but as preparations do: never while something is timed.
    - Preparing and ending gangs (`preparing`) never runs while something is timed (`timing`). Any number of
      preparations run at once, or one timing; a timing that waits goes first. What no candidate waits for
      (`preparing_ahead`) does not begin when one is about to be timed either.
    - While paused, no candidate gets the devices and no preparation begins, so that another program may have them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._taken_s = 0.0
        self._shut = False
        self._timing = 0
        self._waiting = 0
        self._preparing = 0
        self._inside = threading.local()
        """Whether this thread checks, and so may prepare at once."""
        self._preparations_paused = False

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the devices for a candidate.

        Args:
            blocking: Whether to wait until they are free and nothing is paused.

        Returns:
            Whether they are the caller's now.
        """
        with self._changed:
            if not blocking and not self._is_free():
                return False
            self._changed.wait_for(self._is_free)
            self._held, self._taken_s = True, time.monotonic()
            self._changed.notify_all()
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

    @property
    def is_paused(self) -> bool:
        """Whether no candidate gets the devices."""
        return self._shut

    def wait_for_resume(self) -> None:
        """Returns when nothing is paused."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)

    @contextmanager
    def checking(self) -> Iterator[bool]:
        """Keeps timings from beginning while a candidate is checked, from its preparation to its end.

        What this thread prepares meanwhile does not wait: a timing that waits for the check would keep it out.

        Yields:
            Whether it may be checked; False in a pause.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._shut or self._may_prepare())
            begins = not self._shut
            self._preparing += begins
        if not begins:
            yield False
            return
        self._inside.checks = True
        try:
            with self._prepared():
                yield True
        finally:
            self._inside.checks = False

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Waits until nothing is timed or waits to be."""
        with self._changed:
            self._changed.wait_for(lambda: getattr(self._inside, "checks", False) or self._may_prepare())
            self._preparing += 1
        with self._prepared():
            yield

    @contextmanager
    def preparing_ahead(self, is_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Prepares ahead of need; waits too while a candidate has had the devices for longer than `JUST_TAKEN_S`.

        Args:
            is_wanted: Whether to go on waiting; asked whenever something has changed, see `look_again`.

        Yields:
            Whether it may be done; False where it is not wanted any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._may_prepare_ahead() or not is_wanted())
            begins = self._may_prepare_ahead() and is_wanted()
            self._preparing += begins
        if not begins:
            yield False
            return
        with self._prepared():
            yield True

    def look_again(self) -> None:
        """Has those that wait in `preparing_ahead` ask whether they are wanted."""
        with self._changed:
            self._changed.notify_all()

    def _may_prepare(self) -> bool:
        return not self._timing and not self._waiting and not self._preparations_paused

    def _may_prepare_ahead(self) -> bool:
        is_timing_near = self._held and time.monotonic() - self._taken_s > JUST_TAKEN_S
        return self._may_prepare() and not is_timing_near

    @contextmanager
    def _prepared(self) -> Iterator[None]:
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
            timeout_s: Longest wait in seconds; None for no limit. Nothing new begins either way.

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
