"""The kernel's memory for TCP, of which the whole machine has one pool (tcp(7), tcp_mem).

A gang that leaves data unread in many connections takes the pool from others: the baseline's calls then take hundreds
of times as long, and other programs of the machine suffer likewise.
"""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.rank_threads import WATCH_S
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.feedback import Failure

LOW_SHARE = 0.5
"""Share of the first mark of tcp_mem from which a gang's connections are looked at; the kernel acts at the second."""

MAX_RUNNING, MAX_FROZEN = 64, 1
"""Connections with unread data for each rank: during a call, those of several process groups; between calls hardly any,
as each rank has received what was sent to it."""

_LISTENS = "0A"


def pool_is_low() -> bool:
    """Whether connections of this machine take so much that others may soon lack it."""
    used, mark = _used_pages(), _first_mark_pages()
    return used > LOW_SHARE * mark


def loaded_connections(pid: int) -> int:
    """Connections with data that was not received yet, in a process's network namespace; 0 if it has ended."""
    return sum(_loaded(Path(f"/proc/{pid}/net/{family}")) for family in ("tcp", "tcp6"))


def check_connections(pid: int | None, most: int) -> None:
    """Raises GangFailed where the pool is low and a gang has more loaded connections than it may.

    Args:
        pid: Process in the gang's network namespace; None if it has ended.
        most: Loaded connections.
    """
    if pid is None or not pool_is_low():
        return
    loaded = loaded_connections(pid)
    if loaded > most:
        taken = _used_pages() * resource.getpagesize() >> 20
        what = f"{loaded} connections hold unread data, at most {most} may, and {taken} MiB of the machine's memory"
        raise GangFailed(Failure.RUNTIME_ERROR, None, f"{what} for TCP are taken")


class ConnectionWatch:
    """Looks at the connections of running ranks now and then.

    Args:
        pid: Process in the gang's network namespace; None if it has ended.
        ranks: Their number.
    """

    def __init__(self, pid: int | None, ranks: int) -> None:
        self._pid, self._most = pid, MAX_RUNNING * ranks
        self._next = time.monotonic() + WATCH_S

    def look(self) -> None:
        """Looks, if it is time; raises what `check_connections` raises."""
        if time.monotonic() >= self._next:
            check_connections(self._pid, self._most)
            self._next = time.monotonic() + WATCH_S


def _loaded(table: Path) -> int:
    """Lines of /proc/net/tcp (proc(5)) whose queues, to send or to receive, are not empty.

    Those of listeners count connections.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = table.read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return sum(each[3] != _LISTENS and each[4] != "00000000:00000000" for each in fields)


def _used_pages() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/sockstat").read_text().splitlines():
            name, *words = line.split()
            if name == "TCP:" and "mem" in words:
                return int(words[words.index("mem") + 1])
    return 0


def _first_mark_pages() -> float:
    """tcp_mem's; where it is not shown, as in a container, the kernel's default."""
    with contextlib.suppress(OSError):
        return float(Path("/proc/sys/net/ipv4/tcp_mem").read_text().split()[0])
    return host.memory_total_bytes() / resource.getpagesize() / 16 * 0.75
