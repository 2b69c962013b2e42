"""The accepted evaluations of a service, on disk: they outlive the process, and each is counted once.

A file of lines, one entry each, only appended to:

    accepted   before its client gets the reply
    joined     another client asks for the same evaluation
    gave_up    a client does no longer
    begun      by an evaluator
    finished   with its answer, before anybody sees that
    kept       its answer lies in the file of results

After a kill, evaluations without an answer are evaluated, those with an answer are answered from here, and answers
that are not marked as kept are looked for in the file of results before they are appended there. The last line may be
torn; it is cut off. When the file is opened, and whenever it has grown enough, it is replaced by what still matters.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.support.jsonl import LineFile

logger = logging.getLogger(__name__)

GROWTH_BYTES = 64 << 20
"""Bytes that are appended before the file is replaced by the lines that still matter."""


class Accepted(Record):
    """An evaluation that the service has promised."""

    kind: Literal["accepted"] = "accepted"
    id: str
    client: str
    request: EvaluationRequest
    """As the client sent it, with the device of the service."""
    at_s: float
    """Seconds since 1970."""


class Joined(Record):
    """One more client, or the same once more, asks for it."""

    kind: Literal["joined"] = "joined"
    id: str
    client: str


class GaveUp(Record):
    """A client has taken back one request."""

    kind: Literal["gave_up"] = "gave_up"
    id: str
    client: str


class Begun(Record):
    """An evaluator has it in hand."""

    kind: Literal["begun"] = "begun"
    id: str


class Finished(Record):
    """Its answer; no feedback stands for a request that was refused or given up."""

    kind: Literal["finished"] = "finished"
    id: str
    feedback: Feedback | None


class Kept(Record):
    """Its answer lies in the file of results."""

    kind: Literal["kept"] = "kept"
    id: str


JournalEntry: TypeAlias = Annotated[Accepted | Joined | GaveUp | Begun | Finished | Kept, Field(discriminator="kind")]
KINDS = frozenset({"accepted", "joined", "gave_up", "begun", "finished", "kept"})
_ENTRY: TypeAdapter[JournalEntry] = TypeAdapter(JournalEntry)


@dataclass
class Recovered:
    """An evaluation as the journal has it.

    Attributes:
        accepted: the promise.
        interest: requests of each client for it that were not taken back.
        begun: how often an evaluator has had it in hand.
        feedback: its answer; None where there is none yet.
        kept: whether the answer lies in the file of results.
    """

    accepted: Accepted
    interest: dict[str, int]
    begun: int = 0
    feedback: Feedback | None = None
    kept: bool = False


@dataclass
class _Lines:
    """The lines of one evaluation."""

    all: list[bytes] = field(default_factory=list)
    begins_with_promise: bool = False
    answered: bool = False
    void: bool = False


class EvaluationJournal:
    """A journal that one service writes; safe to use from several threads.

    Args:
        path: of the file; made where there is none, in a folder that there is. Its user alone can read it.
        max_answers: answers that are kept when the file is replaced, the latest.
        growth_bytes: what is appended before that.

    Raises:
        ConfigError: it cannot be opened, another service writes it, or a line is no entry of this version.
    """

    def __init__(self, path: Path, max_answers: int, growth_bytes: int = GROWTH_BYTES) -> None:
        self._max_answers, self._growth_bytes = max_answers, growth_bytes
        self._file = LineFile(path, holds="a journal", writer="pkb serve", option="--journal", private=True)
        self._lock, self._syncing = threading.Lock(), threading.Lock()
        self._written = self._synced = self._appended_bytes = 0
        self._closed = False
        try:
            self._file.replace(self._file.recover(lambda lines: _live(lines, max_answers, path)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the file, with every entry on the disk; calling it again changes nothing.

        An evaluation may still be about to wait for its entry: it finds it there.
        """
        with self._syncing, self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._file.sync()
            except InfrastructureError as error:
                logger.warning("entries may be lost in a loss of power: %s", error)
            self._synced = self._written
            self._file.close()

    def recovered(self) -> list[Recovered]:
        """The evaluations that an earlier service has left, in the order of acceptance.

        Raises:
            ConfigError: a line is no entry of this version.
        """
        found: dict[str, Recovered] = {}
        for number, line in enumerate(self._file.read()[0], start=1):
            try:
                # Not pydantic's own JSON, which cannot carry lone surrogates.
                entry = _ENTRY.validate_python(json.loads(line))
            except (ValidationError, ValueError) as error:
                wrong = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                raise ConfigError(
                    f"{self._file.path}, line {number}, is no entry of a journal of this version: {wrong}; "
                    "--journal names another file"
                ) from None
            _apply(entry, found)
        return list(found.values())

    def append(self, entry: JournalEntry) -> int:
        """Writes an entry, so that it outlives this process; returns its number, for `sync`.

        Raises:
            InfrastructureError: the disk would not take it; nothing of it stays behind.
        """
        line = json.dumps(entry.model_dump(mode="json"), allow_nan=False)
        with self._lock:
            if self._closed:
                raise InfrastructureError("the journal cannot be written: it is closed, as the service has ended")
            self._file.append(line, durably=False)
            self._written += 1
            self._appended_bytes += len(line)
            return self._written

    def sync(self, number: int) -> None:
        """Returns when the entry lies on the disk; one write to the disk serves all that wait.

        Raises:
            InfrastructureError: the disk would not take it.
        """
        with self._syncing:
            if self._closed:
                return
            if self._synced < number:
                with self._lock:
                    written = self._written
                self._file.sync()
                self._synced = written
            with self._lock:  # and nobody syncs: the file becomes another one
                if self._appended_bytes > self._growth_bytes:
                    self._file.replace(_live(self._file.read()[0], self._max_answers, self._file.path))
                    self._appended_bytes = 0


def accepted_now(evaluation_id: str, client: str, request: EvaluationRequest) -> Accepted:
    """The promise of an evaluation, at this time."""
    return Accepted(id=evaluation_id, client=client, request=request, at_s=time.time())


def _apply(entry: JournalEntry, found: dict[str, Recovered]) -> None:
    if isinstance(entry, Accepted):
        found[entry.id] = Recovered(entry, {entry.client: 1})
        return
    record = found[entry.id]  # `_live` leaves no line without its promise
    if isinstance(entry, Joined):
        record.interest[entry.client] = record.interest.get(entry.client, 0) + 1
    elif isinstance(entry, GaveUp):
        record.interest[entry.client] = record.interest.get(entry.client, 0) - 1
    elif isinstance(entry, Begun):
        record.begun += 1
    elif isinstance(entry, Finished):
        record.feedback = entry.feedback
    else:
        record.kept = True


def _live(lines: list[bytes], max_answers: int, path: Path) -> list[bytes]:
    """The lines that still matter: of evaluations without an answer, and of the latest answers.

    Raises:
        ConfigError: a line is no entry.
    """
    evaluations: dict[str, _Lines] = {}
    for number, line in enumerate(lines, start=1):
        kind = evaluation_id = None
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            kind, evaluation_id = str(entry["kind"]), entry["id"]
        if kind not in KINDS or not isinstance(evaluation_id, str):
            raise ConfigError(f"{path}, line {number}, is no entry of a journal")
        record = evaluations.setdefault(evaluation_id, _Lines())
        record.all.append(line)
        record.begins_with_promise |= kind == "accepted"
        if kind == "finished":
            record.answered, record.void = True, entry.get("feedback") is None
            evaluations[evaluation_id] = evaluations.pop(evaluation_id)  # in the order of their answers
    whole = [record for record in evaluations.values() if record.begins_with_promise and not record.void]
    answered = [record for record in whole if record.answered][-max_answers:]
    return [line for record in (*answered, *(each for each in whole if not each.answered)) for line in record.all]
