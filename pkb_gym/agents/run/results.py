"""The folder of a run: `results.jsonl`, an attempt a line, and `run.json`, what they depend on."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pkb_gym.agents.run.identity import RunIdentity, read_identity, resumed
from pkb_gym.engine.errors import ConfigError, InfrastructureError, StoreError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import RESULTS, AttemptFile
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.atomic_write import write_atomically

IDENTITY = "run.json"
"""Name of the file beside the results."""

OPTION = "--output"

Turns = Mapping[int, Attempt]
"""Attempt by number of the turn."""


def was_judged(attempt: Attempt) -> bool:
    """Whether an attempt stands: neither endpoint nor evaluator failed."""
    if attempt.source is None:
        return attempt.is_answered
    return attempt.feedback is not None and attempt.feedback.failure is not Failure.INFRASTRUCTURE


class RunResults:
    """The attempts of a run, and where more are appended; safe to use from several threads.

    Args:
        folder: Folder of the run, made where it is missing.
        identity: Identity of the run.

    Raises:
        ConfigError: The folder holds another run or something else, cannot be written, or another process writes it.
    """

    def __init__(self, folder: Path, identity: RunIdentity) -> None:
        self.path, self._identity_path = folder / RESULTS, folder / IDENTITY
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}; {OPTION} names another") from None
        self._file = AttemptFile(self.path, writer="pkb run", option=OPTION)
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._stored = self._read_identity()
            self.identity = identity if self._stored is None else resumed(self._stored, identity, folder, OPTION)
        except BaseException:
            self.close()
            raise
        self._episodes: dict[tuple[str, int], dict[int, Attempt]] = defaultdict(dict)
        for attempt in self._file.attempts:
            self._keep(attempt)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the lock; nothing is recorded any more."""
        with self._lock:
            self._closed = True
            self._file.close()

    def episode(self, problem: str, sample: int) -> Turns:
        """The turns of an episode; of a turn that was taken up again, the last attempt."""
        with self._lock:
            return dict(self._episodes.get((problem, sample), {}))

    def is_complete(self, problem: str, sample: int) -> bool:
        """Whether all turns of an episode are there; one that ended earlier is found out by playing its records."""
        turns = self.episode(problem, sample)
        in_workspace = any(attempt.workspace is not None for attempt in turns.values())
        is_played = (
            any(attempt.is_submission for attempt in turns.values())
            if in_workspace
            else len(turns) >= self.identity.turns
        )
        return is_played and all(map(was_judged, turns.values()))

    def episodes(self) -> dict[tuple[str, int], Turns]:
        """All of them: (problem, sample) -> turns."""
        with self._lock:
            return {place: dict(turns) for place, turns in self._episodes.items()}

    def append(self, attempt: Attempt) -> None:
        """Writes one attempt through to the disk.

        Raises:
            StoreError: Writing failed, or the run has ended; nothing of the attempt is kept.
        """
        with self._lock:
            if self._closed:
                raise StoreError("the run has ended")
            try:
                self._store_identity()
                self._file.append(attempt)
            except InfrastructureError as error:
                raise StoreError(str(error)) from error
            except OSError as error:
                raise StoreError(f"cannot write {self._identity_path}: {error.strerror}") from error
            self._keep(attempt)

    def _read_identity(self) -> RunIdentity | None:
        """The identity of the attempts; None where there are none, whatever an earlier call left."""
        if not self._file.attempts:
            return None
        if not self._identity_path.exists():
            raise ConfigError(f"{self.path} holds results of something else than `pkb run`; {OPTION} names another")
        return read_identity(self._identity_path, OPTION)

    def _store_identity(self) -> None:
        """Writes the identity before the first attempt under it: a call that plays nothing commits to no setting."""
        if self._stored != self.identity:
            write_atomically(self._identity_path, json.dumps(self.identity.model_dump(mode="json"), indent=2) + "\n")
            self._stored = self.identity

    def _keep(self, attempt: Attempt) -> None:
        self._episodes[attempt.problem, attempt.sample][attempt.turn] = attempt
