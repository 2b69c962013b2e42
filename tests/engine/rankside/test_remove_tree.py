"""Folders of candidates are removed, whatever they look like."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pkb_gym.engine.rankside.remove_tree import remove_tree
from pkb_gym.engine.support.ownership import PREFIX, TemporaryFolder
from tests.engine.forked import in_child

NOBODY = 65534


def make_deep(folder: Path, levels: int) -> None:
    """Folders inside each other, deeper than a path can say."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inside = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def test_folders_and_files_of_every_kind_are_removed_and_links_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    for path in (kept, folder / "a" / "closed" / "inside", folder / "b"):
        path.mkdir(parents=True)
    (kept / "file").write_text("")
    (folder / "link").symlink_to(kept)
    (folder / "b" / "broken").symlink_to("nowhere")
    os.mkfifo(folder / "b" / "pipe")
    for number in range(50):
        (folder / f"wide-{number}").mkdir()
        (folder / "b" / f"file-{number}").write_text("")
    if os.geteuid() == 0:  # to whom modes mean nothing
        for path in (tmp_path, folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for path in (folder / "a" / "closed" / "inside", folder / "a" / "closed", folder / "a", folder):
        path.chmod(0)
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        remove_tree("folder")

    in_child(work)
    assert not folder.exists()
    assert (kept / "file").exists()


def test_what_is_not_there_or_no_folder_stays_as_it_is(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        remove_tree(tmp_path / name)
        assert (tmp_path / name).exists()


def test_a_deep_folder_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It ended the evaluation in a RecursionError, and the start of every later evaluator of this user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = TemporaryFolder()
    request.addfinalizer(
        lambda: subprocess.run(["rm", "-rf", tmp_path], check=True)
    )  # pytest could not remove it either
    make_deep(folder.path, sys.getrecursionlimit() + 100)
    abandoned = tmp_path / f"{PREFIX}abandoned"
    folder.path.rename(abandoned)
    folder.close()  # which lets go of the lock
    with TemporaryFolder() as made:
        assert list(tmp_path.iterdir()) == [made.path]
