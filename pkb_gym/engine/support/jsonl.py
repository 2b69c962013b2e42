"""A file of lines for one writer at a time: each line is written through to the disk, whole or not at all."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self, TypeVar

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.support.atomic_write import FOR_ALL, FOR_OWNER

Parsed = TypeVar("Parsed")


class LineFile:
    """Lines so far, and where more are appended; locked against other writers while open.

    Args:
        path: Path of the file, which is created where there is none, in an existing folder.
        holds: Noun for the lines, for errors: "results".
        writer: Name of the command that writes it, for errors: "pkb eval-dir".
        option: Option of that command that names another place: "--output".
        private: Whether a new file is readable by its user alone.

    Raises:
        ConfigError: it cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, *, holds: str, writer: str, option: str, private: bool = False) -> None:
        self.path, self._holds, self._option = path, holds, option
        self._permissions = FOR_OWNER if private else FOR_ALL
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._permissions)
        except OSError as error:
            raise ConfigError(f"cannot write {holds} to {path}: {error.strerror}; {option} names another") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(f"{path} is being written by another `{writer}`") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the lock; calling it again changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self) -> tuple[list[bytes], bytes]:
        """The whole lines, without their ends, and what a killed writer left of one more."""
        whole, _, rest = self.path.read_bytes().rpartition(b"\n")
        return whole.splitlines(), rest

    def recover(self, parse: Callable[[list[bytes]], Parsed]) -> Parsed:
        """The whole lines as they were parsed; what a killed writer left of one more is cut off.

        Args:
            parse: Parser of the lines, without their ends; raises `ConfigError` where they are something else.

        Raises:
            ConfigError: the file holds something else. It is left as it was.
        """
        lines, rest = self.read()
        try:
            parsed = parse(lines)
            if rest and not (lines or rest.startswith(b"{")):
                raise ConfigError(f"{self.path} holds something else than {self._holds}")
        except ConfigError as error:
            raise ConfigError(f"{error}; {self._option} names another file") from None
        self.cut_off(rest)
        return parsed

    def cut_off(self, rest: bytes) -> None:
        """Takes off what `read` found unfinished; the next line begins a line of its own."""
        os.ftruncate(self._file, os.fstat(self._file).st_size - len(rest))

    def append(self, line: str, *, durably: bool = True) -> None:
        """Adds one line.

        Args:
            line: Line without its end.
            durably: Whether to return only when the line lies on the disk. Otherwise it outlives this process alone,
                until `sync`.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        content = line.encode() + b"\n"
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, content) != len(content):
                raise OSError(0, "the disk is full")
            if durably:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise InfrastructureError(f"cannot write {self._holds} to {self.path}: {error.strerror}") from error

    def sync(self) -> None:
        """Returns when every line lies on the disk.

        Raises:
            InfrastructureError: the disk would not take them.
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            raise InfrastructureError(f"cannot write {self._holds} to {self.path}: {error.strerror}") from error

    def replace(self, lines: Iterable[bytes]) -> None:
        """Puts other lines in place of all; a reader, and whoever comes after a kill, finds the old or the new ones.

        Args:
            lines: Lines without their ends.

        Raises:
            InfrastructureError: the disk would not take them; the old ones stay.
        """
        beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            new = os.open(beside, flags, self._permissions)
            try:
                fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others can open it
                with os.fdopen(os.dup(new), "wb") as file:
                    file.writelines(line + b"\n" for line in lines)
                os.fsync(new)
                beside.replace(self.path)
            except BaseException:
                os.close(new)
                beside.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InfrastructureError(f"cannot write {self._holds} to {self.path}: {error.strerror}") from error
        os.close(self._file)
        self._file = new
