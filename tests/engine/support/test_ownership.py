"""Temporary files and folders of killed processes: the next one removes them, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pkb_gym.engine.support import ownership
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.ownership import TemporaryFolder, take_ownership

OWNER = """
import sys
from pkb_gym.engine.support.ownership import TemporaryFolder

folder = TemporaryFolder()
(folder.path / "file").write_text("content")
print(folder.path, flush=True)
sys.stdin.read()
"""
WRITER = """
import os, signal, sys
from pathlib import Path
from pkb_gym.engine.support import atomic_write

Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
atomic_write.write_atomically(Path(sys.argv[1]), "half")
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_until_it_is_closed(temporary: Path) -> None:
    with TemporaryFolder() as folder:
        (folder.path / "inner").mkdir()
        assert list(temporary.iterdir()) == [folder.path]
    assert list(temporary.iterdir()) == []
    folder.close()


def test_the_next_owner_removes_the_folder_of_a_killed_one_and_no_other(temporary: Path) -> None:
    """An evaluator and its zygote that were killed together left a folder behind for ever."""
    stranger = temporary / "pkb-other"
    stranger.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert owner.stdin is not None and owner.stdout is not None
    with owner.stdin, owner.stdout:
        theirs = Path(owner.stdout.readline().strip())
        with TemporaryFolder() as mine:
            assert (theirs / "file").exists(), "its owner lives"
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            assert theirs.exists()
            with TemporaryFolder():
                assert not theirs.exists() and mine.path.exists() and stranger.exists()


def test_a_folder_that_was_taken_for_abandoned_before_it_was_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = tempfile.mkdtemp, []

    def removed_at_once(**options: str) -> str:
        path = real(**options)
        if not removed:
            removed.append(path)
            os.rmdir(path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", removed_at_once)
    with TemporaryFolder() as folder:
        assert folder.path.exists() and str(folder.path) != removed[0]


def test_links_are_not_followed(temporary: Path) -> None:
    target = temporary / "target"
    target.mkdir()
    (temporary / f"{ownership.PREFIX}link").symlink_to(target)
    with TemporaryFolder():
        assert target.exists()


def test_a_folder_that_cannot_be_locked_is_not_left_behind(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(path: Path) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ownership, "take_ownership", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        TemporaryFolder()
    assert list(temporary.iterdir()) == []


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    killed = subprocess.run([sys.executable, "-c", WRITER, str(path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = path.parent.iterdir()
    other = path.parent / ".file.of.somebody"
    other.write_text("being written")
    lock = take_ownership(other)
    assert lock is not None
    write_atomically(path, "whole")
    assert {one.name for one in path.parent.iterdir()} == {"file", other.name}, left
    assert path.read_text() == "whole"
    os.close(lock)
