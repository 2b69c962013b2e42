"""Results of a folder's evaluation, one JSON record a line, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.jsonl import LineFile


class Result(Record):
    """One line."""

    schema_version: Literal[1] = 1
    file: str
    """Name of the source within its folder."""
    asked: EvalConfig
    """The configuration that was asked for; what it came to is in the feedback."""
    feedback: Feedback


class ResultsFile:
    """Results so far, and where further ones are appended; see `LineFile`.

    Where a file has several lines for one source, the last one counts.
    """

    def __init__(self, path: Path, asked: EvalConfig) -> None:
        """Opens or makes the file.

        Raises:
            ConfigError: it holds results under another configuration or something else, or cannot be opened, or
                another process writes it.
        """
        self.path = path
        self._asked = asked
        self._file = LineFile(path, holds="results", writer="pkb eval-dir", option="--output")
        try:
            self.results = self._read()
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

    def judged(self, file: str, source_sha256: str) -> Feedback | None:
        """The result of that very source, None where there is none or where this machine could not judge it."""
        result = self.results.get(file)
        if result is None or result.feedback.source_sha256 != source_sha256:
            return None
        unjudged = (Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY)
        return None if result.feedback.failure in unjudged else result.feedback

    def append(self, file: str, feedback: Feedback) -> None:
        """Writes one result through to the disk.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        result = Result(file=file, asked=self._asked, feedback=feedback)
        self._file.append(result.model_dump_json())
        self.results[file] = result

    def _read(self) -> dict[str, Result]:
        lines, rest = self._file.read()
        results: dict[str, Result] = {}
        for number, line in enumerate(lines, start=1):
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
        if rest and not (results or rest.startswith(b"{")):
            raise ConfigError(f"{self.path} holds something else than results; --output names another file")
        self._file.cut_off(rest)
        return results
