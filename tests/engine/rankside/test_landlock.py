"""Other processes of the user are out of a rank's reach, also where it sees them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pkb_gym.engine.rankside import confine, landlock
from tests.engine.forked import in_child


@pytest.fixture
def other() -> Iterator[int]:
    """A process of this user without capabilities, as the evaluator's are where it does not run as root."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        confine.drop_capabilities()
        confine.prctl(confine.PR_SET_DUMPABLE, 1)
        os.write(tell, b"x")
        while True:
            signal.pause()
    os.read(ready, 1)
    for fd in (ready, tell):
        os.close(fd)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def opened(pid: int) -> bool:
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
    except PermissionError:
        return False
    return True


def test_memory_of_others_cannot_be_opened(other: int) -> None:
    def work() -> None:
        confine.drop_capabilities()
        was_open = opened(other)  # unless the machine forbids it by itself (Yama)
        is_in_domain = landlock.keep_out_of_other_processes()
        assert opened(other) == (was_open and not is_in_domain)
        assert opened(os.getpid())

    in_child(work)


def test_files_are_as_before(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    def work() -> None:
        landlock.keep_out_of_other_processes()
        (tmp_path / "a" / "file").write_text("x")
        (tmp_path / "a" / "file").rename(tmp_path / "b" / "file")
        os.link(tmp_path / "b" / "file", tmp_path / "a" / "linked")
        assert (tmp_path / "a" / "linked").read_text() == "x"

    in_child(work)
