"""Sockets and folders of one user alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.serve.user_socket import listener_pid, listening_at, private_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return private_folder(tmp_path / "run")


def test_a_folder_that_is_made_is_private(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700 and private_folder(folder) == folder


def test_a_folder_that_others_enter_is_refused(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match=r"nobody else can enter \(mode 0700\), found drwxr-x---"):
        private_folder(folder)


def test_a_link_to_a_folder_is_refused(folder: Path) -> None:
    """Whoever can make links in a shared folder would choose where the socket lies."""
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="expected a folder of this user"):
        private_folder(link)


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="expected a folder of this user"):
        private_folder(folder)


def test_who_listens_is_known_until_it_ends(folder: Path) -> None:
    path = folder / "a.sock"
    assert listener_pid(path) is None
    with listening_at(path):
        assert listener_pid(path) == os.getpid() and path.stat().st_mode & 0o777 == 0o600
    assert listener_pid(path) is None and not path.exists()


def test_a_socket_that_nobody_listens_at_is_reported(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "a.sock"))
    assert listener_pid(folder / "a.sock") is None


def test_the_socket_of_a_successor_is_left_alone(folder: Path) -> None:
    path = folder / "a.sock"
    with listening_at(path):
        path.unlink()
        with listening_at(path):
            pass
        path.write_text("a successor's")
    assert path.exists()


def test_a_path_that_is_too_long_says_what_to_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match="set PKB_RUNTIME_DIR"), listening_at(folder / ("a" * 120)):
        pass
