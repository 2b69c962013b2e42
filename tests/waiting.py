"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Longer than a busy machine needs for anything; only a test that fails waits for so long."""


def until(
    condition: Callable[[], object], what: str = "the condition did not come true", patience_s: float = PATIENCE_S
) -> None:
    """Waits for a condition.

    Raises:
        TimeoutError: The condition did not come true.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.002)
