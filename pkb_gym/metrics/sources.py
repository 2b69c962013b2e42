"""Files of attempts, as a user names them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import attempts_path, read_attempts
from pkb_gym.engine.support.printable import printable
from pkb_gym.metrics.results import last_of_each

NAMELESS_STEMS = ("results", "attempts")
"""Names of files that do not identify the author of the kernels, as their folder's name does."""


@dataclass(frozen=True)
class ResultsSource:
    """A source of results, written `PATH` or `AGENT=PATH`.

    Attributes:
        path: Path of a file of attempts, or of its folder.
        agent: Name of the only agent that counts, given to attempts without one too; None for all.
    """

    path: Path
    agent: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses an argument; a path that exists is one, whatever is in it.

        Raises:
            ConfigError: the agent or the path is empty, or a folder holds no results.
        """
        agent, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            return cls(attempts_path(Path(text)))
        if not (agent and path):
            raise ConfigError(f"results are given as PATH or AGENT=PATH, got {text!r}")
        return cls(attempts_path(Path(path)), agent)

    @property
    def default_agent(self) -> str:
        """The name of an agent that no attempt names."""
        if self.agent is not None:
            return self.agent
        stem = self.path.stem
        folder = self.path.resolve().parent.name
        return folder if folder and stem in NAMELESS_STEMS else stem

    def read(self) -> list[Attempt]:
        """The attempts, each with its agent's name without control characters.

        Raises:
            ConfigError: the file cannot be read, a line is no attempt, or there is none of the agent.
        """
        attempts = read_attempts(self.path)
        found = [
            attempt.model_copy(update={"agent": self._name_of(attempt)})
            for attempt in attempts
            if self.agent is None or attempt.agent in (None, self.agent)
        ]
        if not found:
            agents = ", ".join(sorted({self._name_of(attempt) for attempt in attempts}))
            raise ConfigError(
                f"{self.path} holds no attempts"
                + (f" of the agent {self.agent!r}; it has those of {agents}" if attempts else "")
            )
        return found

    def _name_of(self, attempt: Attempt) -> str:
        """The agent of an attempt, on one line, as every page, file and terminal can show it."""
        return " ".join(printable(self.default_agent if attempt.agent is None else attempt.agent).split())


def read_results(arguments: Iterable[str]) -> list[Attempt]:
    """The attempts of several `PATH` or `AGENT=PATH`, each with its agent.

    Raises:
        ConfigError: An argument is wrong or its file unreadable, see `ResultsSource.parse` and `ResultsSource.read`.
    """
    return last_of_each([attempt for text in arguments for attempt in ResultsSource.parse(text).read()])
