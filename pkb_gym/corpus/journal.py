"""Evaluations as they come, one JSON record a line: what is in the journal is never evaluated again."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError, InfrastructureError, StoreError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.jsonl import LineFile


class FeedbackEntry(Record):
    """One line."""

    key: str
    """Key of the evaluation, as by `EvaluationRequest.key`."""
    feedback: Feedback


class FeedbackJournal:
    """Feedback so far, and where more is appended: the `FeedbackStore` in a file, see `LineFile`."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            ConfigError: it holds something else, cannot be opened, or another process writes it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {path.parent}: {error.strerror}; --out names another") from error
        self._file = LineFile(path, holds="evaluations", writer="pkb export", option="--out")
        try:
            self._feedbacks = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._feedbacks)

    def close(self) -> None:
        """Gives up the lock; calling it again changes nothing."""
        self._file.close()

    def get(self, key: str) -> Feedback | None:
        """The feedback of an evaluation by its key; None where there is none."""
        return self._feedbacks.get(key)

    def append(self, key: str, feedback: Feedback) -> None:
        """Adds the feedback of an evaluation."""
        try:
            self._file.append(FeedbackEntry(key=key, feedback=feedback).model_dump_json())
        except InfrastructureError as error:
            raise StoreError(str(error)) from error
        self._feedbacks[key] = feedback

    def _read(self) -> dict[str, Feedback]:
        lines, rest = self._file.read()
        feedbacks: dict[str, Feedback] = {}
        for number, line in enumerate(lines, start=1):
            try:
                entry = FeedbackEntry.model_validate_json(line)
            except ValidationError:
                raise ConfigError(
                    f"{self._file.path}, line {number}, is no evaluation of this version; --out names another folder"
                ) from None
            feedbacks[entry.key] = entry.feedback
        self._file.cut_off(rest)
        return feedbacks
