"""The folder of a run: `results.jsonl`, an attempt a line, and `run.json`, what they depend on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pkb_gym.agents.run.identity import RunIdentity, write_or_compare
from pkb_gym.engine.errors import ConfigError, InfrastructureError, StoreError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.feedback import Failure

RESULTS, IDENTITY = "results.jsonl", "run.json"
"""Names of the files."""

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
        self.path = folder / RESULTS
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}; {OPTION} names another") from None
        self._file = AttemptFile(self.path, writer="pkb run", option=OPTION)
        self._lock = threading.Lock()
        self._closed = False
        try:
            if self._file.attempts and not (folder / IDENTITY).exists():
                raise ConfigError(f"{self.path} holds results of something else than `pkb run`; {OPTION} names another")
            self.identity = write_or_compare(folder / IDENTITY, identity, OPTION)
        except OSError as error:
            self.close()
            raise ConfigError(f"cannot write {folder / IDENTITY}: {error.strerror}; {OPTION} names another") from None
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
        return len(turns) >= self.identity.turns and all(map(was_judged, turns.values()))

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
                self._file.append(attempt)
            except InfrastructureError as error:
                raise StoreError(str(error)) from error
            self._keep(attempt)

    def _keep(self, attempt: Attempt) -> None:
        self._episodes[attempt.problem, attempt.sample][attempt.turn] = attempt
