"""Temporary files and folders that are locked by the process that made them.

The kernel gives up a lock (flock(2)) when its process ends, however it ends: what is there and not locked was left
behind by a process that was killed, and whoever makes the next one removes it. Where a file system has no locks,
nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pkb_gym.engine.rankside.remove_tree import remove_tree

PREFIX = "pkb-scratch-"


class TemporaryFolder:
    """A fresh folder in the system's folder for temporary files; a context manager that removes it.

    Attributes:
        path: Path of the folder.

    Raises:
        OSError: it cannot be made; nothing is left behind.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                lock = take_ownership(self.path)
            except OSError:
                self.path.rmdir()
                raise
            if lock is not None:
                self._lock = lock
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes it; calling it again changes nothing."""
        remove_tree(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def take_ownership(path: Path) -> int | None:
    """Locks a file or folder that was just made.

    Returns:
        A descriptor that holds the lock until it is closed; None where somebody took the path for abandoned before it
        was locked, and removed it.

    Raises:
        OSError: it cannot be opened.
    """
    return _lock(path, fcntl.LOCK_EX)


def share_ownership(path: Path) -> int | None:
    """Takes a share of a folder that several processes use: it is abandoned when the last of them has ended.

    Waits while somebody has it alone.
    """
    return _lock(path, fcntl.LOCK_SH)


def _lock(path: Path, kind: int) -> int | None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, kind)
    if _is_at(lock, path):
        return lock
    os.close(lock)
    return None


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Removes those of this user's files and folders whose owner has ended."""
    for path in paths:
        with contextlib.suppress(OSError):  # gone meanwhile, locked, or another user's
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(lock)
                if found.st_uid != os.geteuid() or not _is_at(lock, path):
                    continue
                if stat.S_ISDIR(found.st_mode):
                    remove_tree(path)
                elif stat.S_ISREG(found.st_mode):
                    path.unlink()
            finally:
                os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
