"""Evaluators of one machine, and what they do side by side: nobody compiles, checks or prepares while one measures.

Two folders are locked, which leaves nothing behind and is let go of however a process ends: the one for temporary files
by whoever measures or works, one above it by whoever waits to. So a measurement that waits goes ahead of work that
comes later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from pkb_gym.engine.stages.progress import WAITING, Progress

_THREAD = threading.local()


@contextlib.contextmanager
def work_beside_others(report: Progress, doing: str = "") -> Iterator[None]:
    """Waits until no evaluator measures or waits to, and keeps measurements from beginning.

    A thread that works already goes on: a measurement that waits for it would keep it out.

    Args:
        report: Callback that receives `WAITING` before a wait.
        doing: Stage name that is reported again after such a wait; empty for none.
    """
    if getattr(_THREAD, "works", False):
        yield
        return
    wait = _WaitReport(report)
    with contextlib.ExitStack() as stack:
        with _locked(_queue(), fcntl.LOCK_EX, wait):
            stack.enter_context(_locked(Path(tempfile.gettempdir()), fcntl.LOCK_SH, wait))
        if wait.was_sent and doing:
            report(doing)
        _THREAD.works = True
        try:
            yield
        finally:
            _THREAD.works = False


@contextlib.contextmanager
def beside_others_at_once() -> Iterator[bool]:
    """Works beside others if nothing measures now, for work that can be put off.

    Yields:
        Whether no evaluator measures or waits to; if not, the caller tries again later.
    """
    with _opened(Path(tempfile.gettempdir())) as folder:
        with _opened(_queue()) as queue:
            begins = _locks_at_once(queue, fcntl.LOCK_EX) and _locks_at_once(folder, fcntl.LOCK_SH)
        yield begins


@contextlib.contextmanager
def machine_to_itself(report: Progress, doing: str = "") -> Iterator[None]:
    """Waits until no evaluator works or measures, ahead of work that comes later, and keeps both from beginning.

    Args:
        report: Callback that receives `WAITING` before a wait.
        doing: Stage name that is reported again after such a wait; empty for none.
    """
    wait = _WaitReport(report)
    with _locked(_queue(), fcntl.LOCK_EX, wait), _locked(Path(tempfile.gettempdir()), fcntl.LOCK_EX, wait):
        if wait.was_sent and doing:
            report(doing)
        yield


class _WaitReport:
    """Reports a wait, once."""

    def __init__(self, report: Progress) -> None:
        self._report, self.was_sent = report, False

    def send_once(self) -> None:
        if not self.was_sent:
            self.was_sent = True
            self._report(WAITING)


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
def _locked(folder: Path, kind: int, wait: _WaitReport) -> Iterator[None]:
    with _opened(folder) as fd:
        if not _locks_at_once(fd, kind):
            wait.send_once()
            fcntl.flock(fd, kind)
        yield


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _locks_at_once(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
