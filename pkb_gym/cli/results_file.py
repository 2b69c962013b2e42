"""Results of a folder's evaluation, one JSON record a line, each written whole or not at all."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import ValidationError

from pkb_gym.engine.config import EvalConfig
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.feedback import Failure, Feedback
from pkb_gym.engine.record import Record


class Result(Record):
    """One line."""

    schema_version: Literal[1] = 1
    file: str
    """Name of the source within its folder."""
    asked: EvalConfig
    """The configuration that was asked for; what it came to is in the feedback."""
    feedback: Feedback


class ResultsFile:
    """Results so far, and where further ones are appended; locked against other writers while open.

    A line that a killed writer left unfinished is cut off. Where a file has several lines, the last one counts.
    """

    def __init__(self, path: Path, asked: EvalConfig) -> None:
        """Opens or makes the file.

        Raises:
            ConfigError: it holds results under another configuration or something else, or cannot be opened, or
                another process writes it.
        """
        self.path = path
        self._asked = asked
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"cannot write results to {path}: {error.strerror}; --output names another") from error
        try:
            self._lock()
            self.results = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the lock; calling it again changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def judged(self, file: str, source_sha256: str) -> Feedback | None:
        """The result of that very source, None where there is none or where the fault was ours."""
        result = self.results.get(file)
        if result is None or result.feedback.source_sha256 != source_sha256:
            return None
        return None if result.feedback.failure is Failure.INFRASTRUCTURE else result.feedback

    def append(self, file: str, feedback: Feedback) -> None:
        """Writes one result through to the disk.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        result = Result(file=file, asked=self._asked, feedback=feedback)
        line = result.model_dump_json().encode() + b"\n"
        end = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(0, "the disk is full")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise InfrastructureError(f"cannot write results to {self.path}: {error.strerror}") from error
        self.results[file] = result

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path} is being written by another `pkb eval-dir`") from None

    def _read(self) -> dict[str, Result]:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        results: dict[str, Result] = {}
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                result = Result.model_validate_json(line)
            except ValidationError as error:
                raise ConfigError(
                    f"{self.path}, line {number}, is no result of this version ({error.error_count()} errors, first "
                    f"{error.errors()[0]['msg']!r}); --output names another file"
                ) from None
            differing = [
                f"{name} was {getattr(result.asked, name)!r}, is {getattr(self._asked, name)!r}"
                for name in EvalConfig.model_fields
                if getattr(result.asked, name) != getattr(self._asked, name)
            ]
            if differing:
                raise ConfigError(
                    f"{self.path} holds results under another configuration: {'; '.join(differing)}. "
                    "Give the same options to resume, or another --output"
                )
            results[result.file] = result
        if whole < len(content) and not (results or content.startswith(b"{")):
            raise ConfigError(f"{self.path} holds something else than results; --output names another file")
        os.ftruncate(self._file, whole)
        return results
