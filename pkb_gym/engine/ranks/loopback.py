"""Traffic on the network of a gang, counted by the kernel, where no rank can reach the counters."""

from __future__ import annotations

import contextlib
from pathlib import Path


def loopback_bytes(pid: int | None) -> int | None:
    """Bytes that have been sent over the loopback interface in a process's network namespace; None if it has ended."""
    if pid is not None:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
                name, _, counters = line.partition(":")
                if name.strip() == "lo":
                    return int(counters.split()[0])
    return None
