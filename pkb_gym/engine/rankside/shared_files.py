"""Files in /dev/shm of a gang that shares the machine's: what its processes map or have open goes with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

FOLDER = "/dev/shm"


class SharedFiles:
    """The files in /dev/shm that are younger than this object.

    What no process of the gang holds stays: other programs of the user keep files there too.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            self._older = frozenset(os.listdir(FOLDER))

    def remove_held_by(self, pids: Iterable[int]) -> None:
        """Removes those that these processes map or have open, and folders that are empty then."""
        for path in {path for pid in pids for path in _held(pid)}:
            parts = path.removeprefix(f"{FOLDER}/").split("/")
            if parts[0] in self._older:
                continue
            with contextlib.suppress(OSError):  # gone meanwhile, among others
                os.unlink(path)
                for depth in range(len(parts) - 1, 0, -1):
                    os.rmdir("/".join([FOLDER, *parts[:depth]]))


def _held(pid: int) -> Iterator[str]:
    """Paths below /dev/shm of the files that a process maps or has open, by proc(5)."""
    with contextlib.suppress(OSError):  # it may have ended
        with open(f"/proc/{pid}/maps") as lines:
            paths = [line.rstrip("\n").split(" ", 5)[-1].lstrip() for line in lines if FOLDER in line]
        with os.scandir(f"/proc/{pid}/fd") as entries:
            paths += [os.readlink(entry) for entry in entries]
        yield from (path for path in paths if path.startswith(f"{FOLDER}/"))
