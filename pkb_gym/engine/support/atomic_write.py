"""Files that are either whole or absent, whoever reads them and whenever the writer is killed."""

from __future__ import annotations

import glob
import os
import secrets
from pathlib import Path

from pkb_gym.engine.support.ownership import remove_abandoned, take_ownership

FOR_ALL, FOR_OWNER = 0o666, 0o600
"""Permissions, before the umask takes some of them away."""


def write_atomically(path: Path, content: str | bytes, permissions: int = FOR_ALL) -> None:
    """Writes `path` by way of a temporary file beside it; makes its folder where there is none.

    A temporary file that a killed writer of the same path left behind is removed.

    Args:
        path: Path of the file.
        content: Whole content of the file.
        permissions: Permissions of the file, as far as the umask allows.

    Raises:
        OSError: the folder cannot be made or written; nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    remove_abandoned(path.parent.glob(f"{glob.escape(prefix)}*"))
    while not _written(path, prefix, data, permissions):
        pass


def _written(path: Path, prefix: str, data: bytes, permissions: int) -> bool:
    """One attempt; False where another writer took the temporary file for abandoned before it was locked."""
    # Not by `tempfile`, whose files are their owner's alone, whatever the umask.
    beside = path.with_name(prefix + secrets.token_hex(8))
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions)
    try:
        with os.fdopen(handle, "wb") as file:
            lock = take_ownership(beside)
            if lock is None:
                return False
            try:
                file.write(data)
                file.flush()
                beside.replace(path)
            finally:
                os.close(lock)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return True
