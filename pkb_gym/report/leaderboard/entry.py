"""One entry: who was measured, how, by which command at which commit, and every figure."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from pkb_gym import __version__
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Device, Protocol
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.metrics.figures import AgentFigures
from pkb_gym.metrics.reach import Reach
from pkb_gym.report.entry_kinds import EntryKind

NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
SHA256 = r"^[0-9a-f]{64}$"


SCHEMA_VERSION: Literal[1] = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class ResultsDigest(Record):
    """One file of attempts that the entry was made of."""

    name: str
    """Name of the file, without its folder."""
    sha256: str = Field(pattern=SHA256)
    attempts: int = Field(ge=1)


class EntryKernel(Record):
    """The best kernel of a problem in one kind of file; `pkb best` chooses it."""

    problem: str
    suffix: Literal["cpp", "cu", "py"]
    source_sha256: str = Field(pattern=SHA256)
    speedup: float | None
    """Speedup over the eager baseline; None where it was not timed."""
    speedup_low: float | None
    speedup_high: float | None


class LeaderboardEntry(Record):
    """One line of the leaderboard."""

    schema_version: Literal[1]
    name: str = Field(pattern=NAME)
    """Name of the entry's file, without `.json`."""
    title: str = Field(min_length=1, max_length=80)
    """Title in the table."""
    kind: EntryKind
    """Kernels written by hand; the baseline as its own candidate; a search such as evolution; a model's kernels."""
    description: str = Field(min_length=1, max_length=1000)
    """The subject: model and prompt, or where kernels come from; turns and samples."""
    command: str = Field(min_length=1)
    """Command that made the results, as it is typed."""
    commit: str = Field(pattern=r"^[0-9a-f]{12}$")
    """Commit of pkb-gym, without changes that are not in it."""
    date: dt.date
    """Date of the measurement."""
    package_version: str
    device: Device
    hardware: str
    """Name of the hardware, as in `Feedback.environment`."""
    protocol: Protocol
    world_sizes: tuple[int, ...] = Field(min_length=1)
    sizes: tuple[str, ...] = Field(min_length=1)
    results: tuple[ResultsDigest, ...] = Field(min_length=1)
    figures: AgentFigures
    """All metrics, by problem and in sum."""
    kernels: tuple[EntryKernel, ...]
    """Kernels of the problems that were solved."""
    reach: Reach | None = None
    """Turns until as fast as the best kernels of another agent, such as the experts, under the same configuration on
    the same machine; None where it was not compared with one."""

    @model_validator(mode="after")
    def _each_stands_once(self) -> Self:
        for title, names in (
            ("problems", [problem.problem for problem in self.figures.problems]),
            ("kernels", [f"{kernel.problem}.{kernel.suffix}" for kernel in self.kernels]),
        ):
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise ValueError(f"{title} that stand twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _kernels_are_of_solved_problems(self) -> Self:
        solved = {problem.problem for problem in self.figures.problems if problem.right}
        named = {kernel.problem for kernel in self.kernels}
        if not solved <= named:
            raise ValueError(f"no kernel for the solved problems {', '.join(sorted(solved - named))}")
        known = {problem.problem for problem in self.figures.problems}
        if not named <= known:
            raise ValueError(f"kernels for problems without figures: {', '.join(sorted(named - known))}")
        return self

    def to_json(self) -> str:
        """Text of the entry's file, with one line a problem."""
        return row_json(self.model_dump(mode="json"))


def read_entry(path: Path) -> LeaderboardEntry:
    """The entry of a file.

    Raises:
        ConfigError: it cannot be read, is no entry, is of another version of the schema, or bears another name than its
            file.
    """
    if path.exists() and not path.is_file():
        # A link of somebody's to a device has no end.
        raise ConfigError(f"cannot read {path}: it is no regular file")
    try:
        text = path.read_bytes()
        _check_version(path, text)
        entry = LeaderboardEntry.model_validate_json(text, strict=True)  # "3" is no number, as in the JSON schema
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is no entry of the leaderboard: {complaint(error)}") from None
    if path.stem != entry.name:
        raise ConfigError(f"{path} holds the entry {entry.name!r}; call it {entry.name}.json")
    return entry


def _check_version(path: Path, text: bytes) -> None:
    """Names the version before any field, which another version may have other ones of."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return  # the validation reports where it is no JSON
    version = found.get("schema_version", SCHEMA_VERSION) if isinstance(found, dict) else SCHEMA_VERSION
    if type(version) is int and version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} is of version {version} of the schema, and this pkb-gym {__version__} reads version "
            f"{SCHEMA_VERSION}; "
            + ("take a newer pkb-gym" if version > SCHEMA_VERSION else "make it again with `pkb leaderboard add`")
        )


def complaint(error: ValidationError) -> str:
    """The first field that is wrong, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the entry'}: {first['msg']}"


def read_entries(paths: Iterable[Path]) -> list[LeaderboardEntry]:
    """The entries of files, and of all `*.json` in folders.

    Raises:
        ConfigError: A file holds no entry, see `read_entry`, or two entries bear one name.
    """
    found: dict[str, LeaderboardEntry] = {}
    for path in paths:
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            entry = read_entry(file)
            if found.setdefault(entry.name, entry) is not entry:
                raise ConfigError(f"{file}: there is another entry {entry.name!r}")
    return list(found.values())


def json_schema() -> str:
    """The JSON schema of an entry, as `leaderboard/schema.json` holds it."""
    return json.dumps({"$schema": DIALECT, **LeaderboardEntry.model_json_schema()}, indent=1) + "\n"
