"""Evaluations as they come, one JSON record a line: what is in the journal is never evaluated again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from pkb_gym.engine.config import EvalConfig
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.feedback import Failure, Feedback
from pkb_gym.engine.record import Record


class Entry(Record):
    """One line."""

    key: str
    """See `evaluation_key`."""
    feedback: Feedback


def evaluation_key(problem: str, source: str, config: EvalConfig) -> str:
    """What tells one evaluation from another: problem, source, and all that was asked for."""
    text = json.dumps([problem, source, config.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()


class Journal:
    """Feedback so far, and where more is appended; locked against other writers while open.

    A line that a killed writer left unfinished is cut off. Faults of this machine are not kept: they are tried again.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            ConfigError: it holds something else, cannot be opened, or another process writes it.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write evaluations to {path}: {error.strerror}; --out names another") from error
        try:
            self._lock()
            self._known = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        """Gives up the lock; calling it again changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def get(self, key: str) -> Feedback | None:
        """What was found; None where that was not evaluated yet."""
        return self._known.get(key)

    def append(self, key: str, feedback: Feedback) -> None:
        """Keeps one evaluation, written through to the disk; a fault of this machine is not kept.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        if feedback.failure is Failure.INFRASTRUCTURE:
            return
        line = Entry(key=key, feedback=feedback).model_dump_json().encode() + b"\n"
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(0, "the disk is full")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise InfrastructureError(f"cannot write evaluations to {self.path}: {error.strerror}") from error
        self._known[key] = feedback

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path} is being written by another `pkb export`") from None

    def _read(self) -> dict[str, Feedback]:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        known: dict[str, Feedback] = {}
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                entry = Entry.model_validate_json(line)
            except ValidationError:
                raise ConfigError(
                    f"{self.path}, line {number}, is no evaluation of this version; --out names another folder"
                ) from None
            known[entry.key] = entry.feedback
        os.ftruncate(self._file, whole)
        return known
