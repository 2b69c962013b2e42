"""Accepted evaluations on disk, in SQLite: they outlive the process, and each is answered once.

One thread owns the connection. It commits all writes that wait in one transaction, so that one write to the disk serves
many requests. A killed process leaves the last commit, and no part of a later one.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import ValidationError

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.support.atomic_write import FOR_OWNER

logger = logging.getLogger(__name__)

APPLICATION, VERSION = 0x504B4247, 1
"""Stored in the header of the database file: "PKBG", and the version of the tables."""

TABLES = """
CREATE TABLE evaluations (
    number INTEGER PRIMARY KEY,         -- in the order of acceptance
    id TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,              -- JSON of the EvaluationRequest, with the device of the service
    accepted_at_s REAL NOT NULL,        -- since 1970
    begun INTEGER NOT NULL DEFAULT 0,   -- how often an evaluator had it in hand
    feedback TEXT,                      -- JSON of the Feedback; NULL before the answer
    answered INTEGER UNIQUE,            -- in the order of the answers
    kept INTEGER NOT NULL DEFAULT 0     -- whether the answer lies in the file of results
);
CREATE TABLE interest (
    id TEXT NOT NULL REFERENCES evaluations(id) ON DELETE CASCADE,
    client TEXT NOT NULL,
    requests INTEGER NOT NULL,          -- that were not taken back
    PRIMARY KEY (id, client)
) WITHOUT ROWID;
"""
MAX_BATCH = 1024

_Work: TypeAlias = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation of an earlier process.

    Attributes:
        id: Id of the evaluation.
        request: The request, with the device of the service.
        accepted_at_s: Time of acceptance in seconds since 1970.
        interest: Requests of each client that were not taken back.
        begun: Number of times that an evaluator had it in hand, at least 0.
        feedback: The answer; None before.
        kept: Whether the answer lies in the file of results.
    """

    id: str
    request: EvaluationRequest
    accepted_at_s: float
    interest: dict[str, int]
    begun: int = 0
    feedback: Feedback | None = None
    kept: bool = False


@dataclass
class _Job:
    work: _Work
    done: Future[Any]
    durable: bool


class EvaluationStore:
    """A database that one process uses; safe in several threads.

    A future that a method returns is done when its write lies on the disk; it has an `InfrastructureError` where the
    disk does not take it. Other writes outlive the process, but not a loss of power; what fails of them is logged.

    Args:
        path: Path of the file; made where there is none, in a folder that there is. Its user alone can read it.
        max_answers: Answers that are kept, the latest ones.

    Raises:
        ConfigError: It cannot be opened, another process uses it, or it is something else.
    """

    def __init__(self, path: Path, max_answers: int) -> None:
        self._path, self._max_answers = path, max_answers
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock, self._closed = threading.Lock(), False
        self._durable: bool | None = None
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._own, args=(opened,), name="pkb-store", daemon=True)
        self._thread.start()
        opened.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file when all writes lie on the disk; calling it again changes nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def stored(self) -> list[StoredEvaluation]:
        """The evaluations of earlier processes: answered ones in the order of their answers, then the others.

        Raises:
            ConfigError: A record is none of this version.
        """
        found: list[StoredEvaluation] = self._post(self._read).result()
        return found

    def accepted(self, evaluation_id: str, client: str, request: EvaluationRequest) -> Future[None]:
        """Stores an evaluation and its first client.

        Raises:
            InfrastructureError: The store was closed.
        """

        def write(connection: sqlite3.Connection) -> None:
            # Not pydantic's own JSON, which cannot carry lone surrogates.
            row = (evaluation_id, json.dumps(request.model_dump(mode="json")), time.time())
            connection.execute("INSERT INTO evaluations (id, request, accepted_at_s) VALUES (?, ?, ?)", row)
            connection.execute("INSERT INTO interest VALUES (?, ?, 1)", (evaluation_id, client))

        return self._post(write)

    def joined(self, evaluation_id: str, client: str) -> Future[None]:
        """Stores one more request of a client for an evaluation.

        Raises:
            InfrastructureError: The store was closed.
        """
        upsert = "INSERT INTO interest VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET requests = requests + 1"
        return self._post(_executing(upsert, evaluation_id, client))

    def gave_up(self, evaluation_id: str, client: str) -> None:
        """Stores that a client took back one request."""
        self._note("UPDATE interest SET requests = requests - 1 WHERE id = ? AND client = ?", evaluation_id, client)

    def begun(self, evaluation_id: str) -> None:
        """Stores that an evaluator has an evaluation in hand."""
        self._note("UPDATE evaluations SET begun = begun + 1 WHERE id = ?", evaluation_id)

    def kept(self, evaluation_id: str) -> None:
        """Stores that an answer lies in the file of results."""
        self._note("UPDATE evaluations SET kept = 1 WHERE id = ?", evaluation_id)

    def removed(self, evaluation_id: str) -> None:
        """Forgets an evaluation that was refused or given up."""
        self._note("DELETE FROM evaluations WHERE id = ?", evaluation_id)

    def answered(self, evaluation_id: str, feedback: Feedback) -> Future[None]:
        """Stores an answer, and forgets those beyond the latest.

        Raises:
            InfrastructureError: The store was closed.
        """

        def write(connection: sqlite3.Connection) -> None:
            text = json.dumps(feedback.model_dump(mode="json"), allow_nan=False)
            connection.execute(
                "UPDATE evaluations SET feedback = ?, answered = (SELECT coalesce(max(answered), 0) + 1"
                " FROM evaluations) WHERE id = ?",
                (text, evaluation_id),
            )
            connection.execute(
                "DELETE FROM evaluations WHERE answered <= (SELECT answered FROM evaluations WHERE answered IS NOT NULL"
                " ORDER BY answered DESC LIMIT 1 OFFSET ?)",
                (self._max_answers,),
            )

        return self._post(write)

    def _post(self, work: _Work, *, durable: bool = True) -> Future[Any]:
        """Has the owner do something in a transaction.

        Raises:
            InfrastructureError: The store was closed.
        """
        done: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise InfrastructureError(f"{self._path} cannot be written: it is closed, as the service has ended")
            self._jobs.put(_Job(work, done, durable))
        return done

    def _note(self, statement: str, *values: object) -> None:
        """One write that nobody waits for."""

        def warn(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                logger.warning("the journal lacks an entry: %s", error)

        try:
            self._post(_executing(statement, *values), durable=False).add_done_callback(warn)
        except InfrastructureError as error:
            logger.warning("the journal lacks an entry: %s", error)

    def _own(self, opened: Future[None]) -> None:
        """The thread of the connection."""
        try:
            connection = _connect(self._path)
        except ConfigError as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        with closing(connection):
            goes_on = True
            while goes_on:
                batch = self._next_jobs()
                goes_on = batch[-1] is not None
                self._commit(connection, [job for job in batch if job is not None])

    def _next_jobs(self) -> list[_Job | None]:
        """Waits for a job and takes what else is there; None at the end closes the store."""
        batch = [self._jobs.get()]
        with suppress(queue.Empty):
            while batch[-1] is not None and len(batch) < MAX_BATCH:
                batch.append(self._jobs.get_nowait())
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        """Commits writes together; where that fails, one by one, so that one costs the others nothing."""
        try:
            durable = any(job.durable for job in batch)
            if durable is not self._durable:  # in a write-ahead log, FULL waits for the disk at each commit
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                results = [job.work(connection) for job in batch]
        except Exception as error:  # noqa: BLE001 - of any kind: somebody waits for the result
            if len(batch) > 1:
                for job in batch:
                    self._commit(connection, [job])
            elif isinstance(error, sqlite3.Error):
                batch[0].done.set_exception(InfrastructureError(f"{self._path} cannot be written: {error}"))
            else:
                batch[0].done.set_exception(error)
            return
        for job, result in zip(batch, results, strict=True):
            job.done.set_result(result)

    def _read(self, connection: sqlite3.Connection) -> list[StoredEvaluation]:
        interest: dict[str, dict[str, int]] = {}
        for evaluation_id, client, requests in connection.execute("SELECT id, client, requests FROM interest"):
            interest.setdefault(evaluation_id, {})[client] = requests
        rows = connection.execute(
            "SELECT id, request, accepted_at_s, begun, feedback, kept FROM evaluations"
            " ORDER BY answered IS NULL, answered, number"
        )
        found = []
        for evaluation_id, request, accepted_at_s, begun, feedback, kept in rows:
            try:
                found.append(
                    StoredEvaluation(
                        evaluation_id,
                        EvaluationRequest.model_validate(json.loads(request)),
                        accepted_at_s,
                        interest.get(evaluation_id, {}),
                        begun,
                        None if feedback is None else Feedback.model_validate(json.loads(feedback)),
                        bool(kept),
                    )
                )
            except ValidationError as error:
                raise ConfigError(_refusal(self._path, f"evaluation {evaluation_id}: {error}")) from None
        return found


def _executing(statement: str, *values: object) -> _Work:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute(statement, values)

    return work


def _connect(path: Path) -> sqlite3.Connection:
    """Opens a database for this thread alone, and makes its tables where it is empty.

    Raises:
        ConfigError: It cannot be opened, another process uses it, or it is something else.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FOR_OWNER))
    except OSError as error:
        raise ConfigError(f"cannot write a journal to {path}: {error.strerror}; --journal names another") from error
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA foreign_keys = ON")
        (application,), (version,), (tables,) = (
            connection.execute(query).fetchone()
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if tables and (application, version) != (APPLICATION, VERSION):
            raise ConfigError(_refusal(path, f"application {application:#x}, version {version}"))
        connection.execute("PRAGMA journal_mode = WAL")
        if not tables:
            mark = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            connection.executescript(f"BEGIN EXCLUSIVE; {mark} {TABLES} COMMIT")
        connection.executescript("BEGIN EXCLUSIVE; COMMIT")  # takes the lock, which this connection keeps
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise ConfigError(f"{path} is being written by another `pkb serve`") from None
        raise ConfigError(_refusal(path, str(error))) from None
    except ConfigError:
        connection.close()
        raise
    return connection


def _refusal(path: Path, why: str) -> str:
    return f"{path} is no journal of this version ({why}); --journal names another file"
