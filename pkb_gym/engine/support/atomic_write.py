"""Files that are either whole or absent, whoever reads them and whenever the writer is killed."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

from pkb_gym.engine.support.ownership import remove_abandoned, take_ownership


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes `path` by way of a temporary file beside it; makes its folder where there is none.

    A temporary file that a killed writer of the same path left behind is removed.

    Raises:
        OSError: the folder cannot be made or written; nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    remove_abandoned(path.parent.glob(f"{glob.escape(prefix)}*"))
    while not _written(path, prefix, data):
        pass


def _written(path: Path, prefix: str, data: bytes) -> bool:
    """One attempt; False where another writer took the temporary file for abandoned before it was locked."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "wb") as file:
            lock = take_ownership(Path(name))
            if lock is None:
                return False
            try:
                file.write(data)
                file.flush()
                Path(name).replace(path)
            finally:
                os.close(lock)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True
