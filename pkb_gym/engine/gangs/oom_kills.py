"""The kernel's own count of processes that it has ended because memory was short."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(root: Path = Path("/")) -> int:
    """The number of processes ended so far, on the machine and in this process's control group; a kill counts in both.

    The kernel counts before it sends the signal. Where it shows no counters, none is known.

    Args:
        root: Folder that holds proc(5) and sysfs(5).
    """
    return sum(int(count) for text in _counters(root) for count in _COUNT.findall(text))


def _counters(root: Path) -> Iterator[str]:
    for path in (root / "proc/vmstat", *_of_group(root)):
        with contextlib.suppress(OSError):
            yield path.read_text()


def _of_group(root: Path) -> Iterator[Path]:
    """The counters of the control group: of version 2, and of version 1."""
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.oom_control"
