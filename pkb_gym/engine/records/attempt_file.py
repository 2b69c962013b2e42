"""Files of attempts, one JSON record a line, each written whole or not at all; the one reader of them."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.jsonl import LineFile

RESULTS = "results.jsonl"
"""Name of the file of attempts in the folder of a run."""


def attempts_path(path: Path) -> Path:
    """The file of attempts that a path stands for: of a folder its `results.jsonl`.

    Raises:
        ConfigError: a folder has none; the message names those of folders in it.
    """
    if not path.is_dir():
        return path
    if (found := path / RESULTS).exists():
        return found
    runs = ", ".join(str(file.parent) for file in sorted(path.glob(f"*/{RESULTS}")))
    raise ConfigError(f"{path} is a folder without {RESULTS}" + (f"; there are runs in {runs}" if runs else ""))


def read_attempts(path: Path) -> list[Attempt]:
    """The attempts of a file, in order; a last line that was cut off is passed over.

    Args:
        path: Path of the file, or of its folder, see `attempts_path`.

    Raises:
        ConfigError: the file cannot be read, or a line is no attempt; the message has file, line, and the first
            fields that are wrong.
    """
    path = attempts_path(path)
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return _parsed(whole.split(b"\n") if whole else [], path)


class AttemptFile:
    """The attempts of a file when it was opened, and where more are appended; see `LineFile`.

    Args:
        path: Path of the file, which is created where there is none, in an existing folder.
        writer: Name of the command that writes it, for errors.
        option: Option of that command that names another place, for errors.

    Attributes:
        path: Path of the file.
        attempts: Attempts in the order of the file.

    Raises:
        ConfigError: a line is no attempt, the file cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, *, writer: str, option: str) -> None:
        self.path = path
        self._file = LineFile(path, holds="results", writer=writer, option=option)
        try:
            self.attempts = self._file.recover(lambda lines: _parsed(lines, path))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the lock; calling it again changes nothing."""
        self._file.close()

    def append(self, attempt: Attempt) -> None:
        """Writes one attempt through to the disk.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        self._file.append(attempt.to_line())


def _parsed(lines: list[bytes], path: Path) -> list[Attempt]:
    attempts = []
    for number, line in enumerate(lines, start=1):
        try:
            attempts.append(Attempt.from_line(line))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}, is no result of this version: {error}") from None
    return attempts
