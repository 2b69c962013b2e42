"""Files that others can read, as far as the user's umask allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pkb_gym.engine.errors import ConfigError
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


def test_a_line_that_a_kill_has_torn_is_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b"')
    with LineFile(path, holds="results", writer="test", option="--output") as file:
        assert file.recover(list) == [b'{"a": 1}']
        file.append("{}")
    assert path.read_bytes() == b'{"a": 1}\n{}\n'


@pytest.mark.parametrize("content", [b"a letter", b"Dear reader,\nwithout an end"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path, content):
    def parse(lines: list[bytes]) -> list[bytes]:
        if any(not line.startswith(b"{") for line in lines):
            raise ConfigError("line 1 is no result")
        return lines

    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    with (
        LineFile(path, holds="results", writer="test", option="--output") as file,
        pytest.raises(ConfigError, match=r"(something else than results|no result); --output names another file"),
    ):
        file.recover(parse)
    assert path.read_bytes() == content
