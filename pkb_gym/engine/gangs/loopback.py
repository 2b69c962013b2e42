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


def segments_sent(pid: int | None) -> int | None:
    """TCP segments with new data that were sent in a process's network namespace; None if it has ended.

    Neither acknowledgements nor what is sent again count (`TCPOrigDataSent` of proc(5)'s net/netstat).
    """
    if pid is not None:
        with contextlib.suppress(OSError):
            lines = [line.split() for line in Path(f"/proc/{pid}/net/netstat").read_text().splitlines()]
            for names, values in zip(lines[::2], lines[1::2], strict=False):
                if "TCPOrigDataSent" in names:
                    return int(values[names.index("TCPOrigDataSent")])
    return None
