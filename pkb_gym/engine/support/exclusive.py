"""Work that one process of this machine does for all: others wait for it instead of repeating it beside it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKS = "locks"
"""Name of the file that bytes are locked of."""

_FLOCK = struct.Struct("@hhqqi4x")
"""struct flock of fcntl(2): kind, whence, start, length, and 0 in place of a process."""


@contextmanager
def exclusive(folder: Path, key: str) -> Iterator[None]:
    """One caller on this machine at a time for each folder and key.

    Where the folder cannot be written to, nobody waits. All keys share one file, of which each locks one byte: a file
    for each would have to stay, since removing it is a race with those that wait for it.
    """
    locks = _open_locks(folder)
    try:
        if locks is not None:
            _lock_byte(locks, key, fcntl.F_WRLCK)
        yield
    finally:
        if locks is not None:
            _lock_byte(locks, key, fcntl.F_UNLCK)  # closing is not enough where a forked process has it too
            os.close(locks)


def _open_locks(folder: Path) -> int | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _lock_byte(file: int, key: str, kind: int) -> None:
    """Locks or unlocks the byte of a key; by open file (fcntl(2), open file description locks), so for threads too."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    fcntl.fcntl(file, fcntl.F_OFD_SETLKW, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
