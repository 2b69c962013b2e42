"""Finds the processes and shared-memory files that a test leaves behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
GRACE_S = 5.0
"""How long what is ending may take; only a test that leaks waits so long."""
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
        """The allowed processes and all their descendants."""
        allowed: set[int] = set()
        for pid in {pid for ask in self._pids for pid in ask()}:
            try:
                allowed |= {pid} | {child.pid for child in psutil.Process(pid).children(recursive=True)}
            except psutil.NoSuchProcess:
                continue
        return allowed

    def files(self) -> frozenset[str]:
        """The allowed names in /dev/shm."""
        return frozenset(self._files)


@dataclass(frozen=True)
class Snapshot:
    """The descendants of this process, told apart by pid and start time, and the names in /dev/shm."""

    processes: frozenset[psutil.Process]
    files: frozenset[str]


def snapshot() -> Snapshot:
    """What is there now. A zombie is no longer there."""
    alive = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                alive.append(child)
        except psutil.NoSuchProcess:
            continue
    files = {path.name for path in SHM.iterdir()} if SHM.is_dir() else set()
    return Snapshot(frozenset(alive), frozenset(files))


def leftovers(before: Snapshot, lasting: Lasting, grace_s: float = GRACE_S) -> list[str]:
    """One line for each process and file that is new since `before` and does not go away by itself.

    Args:
        before: taken before the test.
        lasting: what may stay.
        grace_s: how long to wait for what is ending.
    """
    deadline = time.monotonic() + grace_s
    while found := _new(before, lasting):
        if time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.02)
    return found


def _new(before: Snapshot, lasting: Lasting) -> list[str]:
    now = snapshot()
    processes = {child for child in now.processes - before.processes if not _is_server_of_python(child)}
    files = now.files - before.files - lasting.files()
    if processes:
        allowed = lasting.pids()
        processes = {child for child in processes if child.pid not in allowed}
    lines = [f"process {child.pid}: {_command(child)}" for child in sorted(processes, key=lambda child: child.pid)]
    return lines + [f"file {SHM / name}" for name in sorted(files) if not _used_by_others(name)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def _is_server_of_python(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in SERVERS_OF_PYTHON)


def _used_by_others(name: str) -> bool:
    """Whether a process outside this test run maps or opens the file: then it is not this run's."""
    path = str(SHM / name)
    ours = {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            if any(mapped.path == path for mapped in process.memory_maps()):
                return True
            if any(file.path == path for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False
