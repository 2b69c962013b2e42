"""Counters that processes wake each other by (eventfd(2))."""

from __future__ import annotations

import contextlib
import os
import select


def drain(eventfd: int) -> None:
    """Takes what a block that was broken off has left."""
    while select.select([eventfd], [], [], 0)[0]:
        with contextlib.suppress(BlockingIOError):  # somebody else has taken it meanwhile
            os.eventfd_read(eventfd)
