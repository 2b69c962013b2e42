"""Unix sockets that only one user can reach, and the folder that they lie in."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from pkb_gym.engine.errors import ConfigError

MAX_PATH_BYTES = 107
"""Longest path of a socket on Linux, see unix(7)."""

CONNECT_S = 5.0
BACKLOG = 128

_UCRED = struct.Struct("3i")


def private_folder(path: Path) -> Path:
    """A folder that this user alone can enter; made where there is none.

    Raises:
        ConfigError: it cannot be made, belongs to another user, or others may enter it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"no sockets can be kept in {path}: {error.strerror}; set PKB_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"no sockets can be kept in {path}: expected a folder of this user that nobody else can enter (mode 0700), "
            f"found {stat.filemode(found.st_mode)} of user {found.st_uid}; change that, or set PKB_RUNTIME_DIR"
        )
    return path


@contextlib.contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """Listens at a path until the block ends; then the path is removed, unless it has become another socket's.

    Raises:
        ConfigError: it cannot be had.
    """
    private_folder(path.parent)
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"{path} is longer than a socket's path may be, {MAX_PATH_BYTES} bytes; set PKB_RUNTIME_DIR")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(os.fspath(path))
            own = path.lstat()
            path.chmod(0o600)
            listener.listen(BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen at {path}: {error.strerror}") from None
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), own):
                    path.unlink()


def listener_pid(path: Path) -> int | None:
    """The process of this user that listens at a path; None where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(os.fspath(path))
            pid, uid, _ = _UCRED.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        except OSError:
            return None
        return pid if uid == os.geteuid() else None
