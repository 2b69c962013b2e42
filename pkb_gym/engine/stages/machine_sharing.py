"""Evaluators of one machine, and what they do side by side: nothing compiles or checks while somebody measures.

Two folders are locked, which leaves nothing behind and is let go of however a process ends: the one for temporary files
by whoever measures (`time.machine_to_itself`) or works, one above it by whoever waits to. So a measurement that
waits goes ahead of work that comes later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def work_beside_others() -> Iterator[None]:
    """Waits until no evaluator measures or waits to, and keeps measurements from beginning."""
    with contextlib.ExitStack() as stack:
        with _locked(_queue(), fcntl.LOCK_EX):
            stack.enter_context(_locked(Path(tempfile.gettempdir()), fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def ahead_of_work() -> Iterator[None]:
    """Keeps new work from beginning; whoever measures then takes `machine_to_itself`."""
    with _locked(_queue(), fcntl.LOCK_EX):
        yield


def folder_apart(folder: Path) -> Path:
    """Makes a folder for temporary files two levels down: its evaluators wait for no others, nor others for them.

    For those that have processors of their own. Whether the folder itself is locked by somebody does not matter.
    """
    apart = folder / "queue" / "tmp"
    apart.mkdir(parents=True)
    return apart


def _queue() -> Path:
    """The nearest folder above that can be opened: those of several users' folders may be closed to them."""
    above = Path(tempfile.gettempdir()).parents
    return next((folder for folder in above if os.access(folder, os.R_OK)), above[-1])


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)
