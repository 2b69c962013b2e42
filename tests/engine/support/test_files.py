"""Files that others can read, as far as the user's umask allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pkb_gym.engine.support.atomic_write import FOR_OWNER, write_atomically
from pkb_gym.engine.support.jsonl import LineFile


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002])
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def permissions(path) -> int:
    return path.stat().st_mode & 0o777


def test_files_follow_the_umask(tmp_path, umask):
    """Temporary files are their owner's alone, and so were the results that replaced them."""
    whole, lines = tmp_path / "summary.json", tmp_path / "results.jsonl"
    write_atomically(whole, "{}\n")
    with LineFile(lines, holds="results", writer="test", option="--output") as file:
        file.append("{}")
    assert permissions(whole) == permissions(lines) == 0o666 & ~umask


def test_secrets_are_their_owners_alone(tmp_path, umask):
    path = tmp_path / "token"
    write_atomically(path, "secret", FOR_OWNER)
    assert permissions(path) == 0o600


def test_nothing_is_left_behind_where_a_write_fails(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
