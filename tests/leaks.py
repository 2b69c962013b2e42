"""Finds the processes and shared-memory files that a test leaves behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

SHM = Path("/dev/shm")
GRACE_S = 30.0
"""How long what is ending may take; only a test that leaks waits so long."""
UNCOLLECTED_S = 0.2
"""What is ending by itself is gone by then; a collection takes longer than most tests."""
SERVERS_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Started once by the standard library and meant to stay until the interpreter ends."""


@dataclass
class Lasting:
    """What may outlive a test: the processes and files of session-scoped fixtures."""

    _pids: list[Callable[[], Iterable[int]]] = field(default_factory=list)
    _files: set[str] = field(default_factory=set)

    def keep_process(self, pid: int | Callable[[], Iterable[int]]) -> None:
        """Allow a process and its descendants; a function is asked after each test for the pids of that moment."""
        self._pids.append(pid if callable(pid) else lambda: (pid,))

    def keep_file(self, name: str) -> None:
        """Allow a file of /dev/shm."""
        self._files.add(name)

    def pids(self) -> set[int]:
        """The allowed processes and all their descendants, of those that are descendants of this process."""
        tree = descendants.tree()
        allowed = {pid for ask in self._pids for pid in ask()} & tree.keys()
        while found := {pid for pid in tree.keys() - allowed if tree[pid].parent in allowed}:
            allowed |= found
        return allowed

    def files(self) -> frozenset[str]:
        """The allowed names in /dev/shm."""
        return frozenset(self._files)


class Descendant(NamedTuple):
    """A living process that this one started, itself or through others.

    Attributes:
        pid: Process id, which another process may have once this one is gone.
        started: Start of the process, in clock ticks since boot.
    """

    pid: int
    started: int


class Descendants:
    """Finds the descendants of this process.

    It reads again only what it does not know to be somebody else's: before and after each of thousands of tests,
    reading the state of every process of the machine took as long as many a test.
    """

    def __init__(self) -> None:
        self._others: set[int] = set()

    def __call__(self) -> frozenset[Descendant]:
        """The living ones. A zombie is no longer there."""
        return frozenset(Descendant(pid, stat.started) for pid, stat in self.tree().items() if stat.state != "Z")

    def tree(self) -> dict[int, _Stat]:
        """Parents and states by number, zombies included."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._others &= pids
        read = {pid: stat for pid in pids - self._others if (stat := _stat(pid)) is not None}
        ours = {os.getpid()}
        unknown = set(read) - ours
        while found := {pid for pid in unknown if read[pid].parent in ours}:
            ours |= found
            unknown -= found
        # Whose parent ended meanwhile may have become a child of ours: it is looked at again next time.
        others = self._others | {0}
        while found := {pid for pid in unknown if read[pid].parent in others}:
            others |= found
            unknown -= found
        self._others = others - {0}
        return {pid: read[pid] for pid in ours - {os.getpid()}}


class _Stat(NamedTuple):
    state: str
    parent: int
    started: int


def _stat(pid: int) -> _Stat | None:
    """From proc(5)'s stat; None where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0], int(fields[1]), int(fields[19]))


descendants = Descendants()


@dataclass(frozen=True)
class Snapshot:
    """The names in /proc and in /dev/shm.

    A process's number is its name: only those of processes that came later are looked up, as the state of dozens of
    lasting ones takes longer to read than most tests. Numbers are given in a circle, so none is given twice so soon.
    """

    processes: frozenset[str]
    files: frozenset[str]


class ProcessNames:
    """The names in /proc, listed again where the kernel has given a number since: most tests start no process."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._names: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        """Those that there are, and some that may have ended meanwhile."""
        last = _last_number()
        if last != self._last:
            self._last, self._names = last, frozenset(os.listdir("/proc"))
        return self._names


def _last_number() -> bytes:
    """Of a process or thread, from proc_loadavg(5)."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return file.read(100).split()[-1]


process_names = ProcessNames()


def snapshot() -> Snapshot:
    """What is there now."""
    files = os.listdir(SHM) if SHM.is_dir() else ()
    return Snapshot(process_names(), frozenset(files))


def leftovers(before: Snapshot, lasting: Lasting, grace_s: float = GRACE_S) -> list[str]:
    """One line for each process and file that is new since `before` and does not go away by itself.

    Args:
        before: State before the test.
        lasting: Resources that may stay.
        grace_s: Maximum wait for ending processes, in seconds.
    """
    began = time.monotonic()
    while found := _new(before, lasting):
        waited_s = time.monotonic() - began
        if waited_s > grace_s:
            break
        if waited_s > UNCOLLECTED_S:
            gc.collect()
        time.sleep(0.02)
    return found


def _new(before: Snapshot, lasting: Lasting) -> list[str]:
    now = snapshot()
    new = {int(name) for name in now.processes - before.processes if name.isdigit()}
    processes = {pid for pid in new if _is_ours(pid) and not _is_server_of_python(pid)}
    files = now.files - before.files - lasting.files()
    if processes:
        processes -= lasting.pids()
    lines = [f"process {pid}: {_command(pid)}" for pid in sorted(processes)]
    return lines + [f"file {SHM / name}" for name in sorted(files) if not used_by_others(name)]


def _is_ours(pid: int) -> bool:
    """Whether a process lives and descends from this one."""
    ancestor = pid
    while ancestor > 0:
        stat = _stat(ancestor)
        if stat is None:
            if ancestor == pid:
                return False
            ancestor = pid  # whose parent ended meanwhile: it has another now
            continue
        if ancestor == pid and stat.state == "Z":
            return False
        if stat.parent == os.getpid():
            return True
        ancestor = stat.parent
    return False


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def _is_server_of_python(pid: int) -> bool:
    return any(name in _command(pid) for name in SERVERS_OF_PYTHON)


def used_by_others(name: str) -> bool:
    """Whether a process outside this test run maps or opens the file: then it is not this run's.

    Mappings are compared by inode: a semaphore is mapped under a temporary name before it gets its own.
    """
    try:
        inode = os.stat(SHM / name).st_ino
    except FileNotFoundError:
        return True  # it has gone meanwhile
    ours = {os.getpid()} | {child.pid for child in descendants()}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            if inode in _mapped_inodes(process.pid):
                return True
            if any(file.path == str(SHM / name) for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False


def _mapped_inodes(pid: int) -> set[int]:
    """Of files in /dev/shm that a process maps, by proc(5)'s maps."""
    with open(f"/proc/{pid}/maps") as lines:
        return {int(line.split()[4]) for line in lines if str(SHM) in line}
