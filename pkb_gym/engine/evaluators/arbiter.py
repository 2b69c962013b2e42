"""The gate before a machine's devices: one candidate at a time, and none while it is shut."""

from __future__ import annotations

import threading
from types import TracebackType


class DeviceGate:
    """A lock that can be shut: whoever holds it goes on, nobody else gets it until it is opened again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._shut = False

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the devices.

        Args:
            blocking: whether to wait until they are free and the gate is open.

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

    def shut(self, timeout_s: float | None = None) -> bool:
        """Lets nobody in until `open`, and waits for who is inside.

        Args:
            timeout_s: how long to wait; None for as long as it takes. The gate is shut either way.

        Returns:
            Whether nobody is inside any more.
        """
        with self._changed:
            self._shut = True
            return self._changed.wait_for(lambda: not self._held, timeout_s)

    def open(self) -> None:
        """Lets the next one in; opening it again changes nothing."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _is_free(self) -> bool:
        return not self._held and not self._shut
