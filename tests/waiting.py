"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Longer than a busy machine needs for anything; only a test that fails waits for so long."""


def until(
    condition: Callable[[], object], what: str = "the condition did not come true", patience_s: float = PATIENCE_S
) -> None:
    """Waits for a condition, which is asked less often the longer it takes: some conditions cost as much as the work.

    Raises:
        TimeoutError: The condition did not come true.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if waited_s > patience_s:
            raise TimeoutError(what)
        time.sleep(min(0.002 + waited_s / 50, 0.2))
