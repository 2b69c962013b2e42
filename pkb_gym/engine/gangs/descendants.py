"""Ends what ranks have started. Only ranks of a dialect that brings its own compiler (Triton) may start processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.support.pidfds import pid_of


def end_descendants(leader_pidfd: int, rank_pidfds: Sequence[int]) -> int:
    """Kills every descendant of a gang's leader but its ranks, which must be stopped.

    Orphans are the leader's children: it is process 1 of their namespace, or their subreaper. The end of a child can
    wake its stopped parent (clone(2), exit signal), so that the ranks must be stopped again unless none was found.

    Returns:
        Number of processes found.
    """
    leader, ranks = pid_of(leader_pidfd), {pid_of(fd) for fd in rank_pidfds}
    if leader is None:
        return 0
    parents = _parents()
    family, found = {leader}, -1
    while len(family) > found:
        found = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    strangers = family - ranks - {leader}
    for pid in strangers:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                if _parent(Path(f"/proc/{pid}")) in family:  # the number may be another process's by now
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return len(strangers)


def _parents() -> dict[int, int]:
    """Parent of every process that has not ended."""
    found = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid: parent for pid, parent in found.items() if parent is not None}


def _parent(entry: Path) -> int | None:
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)
