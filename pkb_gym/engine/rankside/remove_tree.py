"""Removal of folders that candidates have written to."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Removes a folder and all that lies in it, however deep and of whatever mode; what cannot be removed stays.

    `shutil.rmtree` calls itself for every level, holds a descriptor of each, and ends in a RecursionError. Here folders
    are moved up before they are emptied, so that none lies deeper than two levels.
    """
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # it may be closed to its owner too
        finally:
            os.close(place)
        top = os.open(path, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def _empty(top: int) -> None:
    names = (f"{secrets.token_hex(8)}.{number}" for number in itertools.count())
    left = list(_folders_left(top))
    while left:
        name = left.pop()
        with contextlib.suppress(OSError):
            folder = os.open(name, _FOLDER, dir_fd=top)
            try:
                for inner in list(_folders_left(folder)):
                    moved = next(names)
                    with contextlib.suppress(OSError):
                        os.rename(inner, moved, src_dir_fd=folder, dst_dir_fd=top)
                        left.append(moved)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _folders_left(folder: int) -> Iterator[str]:
    """Removes what is no folder; the names of the others, which their owner may open and move from now on."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.name, 0o700, dir_fd=folder)
                    yield entry.name
                else:
                    os.unlink(entry.name, dir_fd=folder)
