"""The identity of a run: all that its results depend on, stored when it begins and compared when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pkb_gym.agents.protocol import Setting
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.envs.text.turn import Style

MAX_NAMED = 4
"""Differences that an error names."""


class RunIdentity(Record):
    """All that the results of a run depend on; samples, problems and budgets may change from call to call."""

    schema_version: Literal[1] = 1
    agent: str
    """Name of the agent in tables."""
    kind: str
    """Kind of the agent, as `open_agent` takes it without its argument."""
    settings: dict[str, Setting]
    """Settings of the agent."""
    turns: int = Field(ge=1)
    """Replies of an episode, at most."""
    plateau: int | None = Field(default=None, ge=1)
    """An episode ends after so many turns in a row that did not improve its best; None for all its turns."""
    style: Style
    """Length of tasks and feedback."""
    reward: str
    """Name of the reward, as for `find_reward`."""
    seed: int
    """Seed of inputs and agents."""
    hardware: str | None = None
    """Processor or GPU that kernels run on; None where a service judges."""
    requested: EvalConfig
    """Configuration of evaluations, as requested."""
    resolved: dict[str, ResolvedConfig]
    """Configuration of evaluations by problem, where the source does not decide it."""


def write_or_compare(path: Path, identity: RunIdentity, option: str) -> RunIdentity:
    """Writes a run's identity, or sees to it that a run which is resumed has the same.

    Args:
        path: Path of the file.
        identity: Identity of the run that begins.
        option: Option that names another place, for errors.

    Returns:
        The identity with the problems of both.

    Raises:
        ConfigError: The run was begun with another identity, or the file holds none.
    """
    if path.exists():
        try:
            before = RunIdentity.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{path} does not hold the settings of its run: {reason}; {option} names another"
            ) from None
        shared = before.resolved.keys() & identity.resolved.keys()
        refuse_differences(path.parent, _compared(before, shared), _compared(identity, shared), option)
        identity = identity.model_copy(update={"resolved": before.resolved | identity.resolved})
        if identity == before:
            return identity
    write_atomically(path, json.dumps(identity.model_dump(mode="json"), indent=2) + "\n")
    return identity


def refuse_differences(folder: Path, before: Mapping[str, object], now: Mapping[str, object], option: str) -> None:
    """Sees to it that a run is resumed under the configuration that it was begun under.

    Args:
        folder: Folder of the run, for errors.
        before: Configuration as it was recorded.
        now: Configuration as it is requested.
        option: Option that names another folder, for errors.

    Raises:
        ConfigError: The configurations differ; the message names the first differences.
    """
    found = differences(before, now)
    if found:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise ConfigError(
            f"{folder} holds a run under another configuration: {'; '.join(found[:MAX_NAMED])}{more}. "
            f"Give the same options to resume, or another {option}"
        )


def differences(before: Mapping[str, object], now: Mapping[str, object], within: str = "") -> list[str]:
    """The differences between two configurations, by name; nested ones are compared by field.

    Example:
        >>> differences({"turns": 1, "requested": {"size": "tiny"}}, {"turns": 1, "requested": {"size": "large"}})
        ["requested.size was 'tiny', is 'large'"]
    """
    found: list[str] = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{within}{name}.")
        elif old != new:
            found.append(f"{within}{name} was {old!r}, is {new!r}")
    return found


def _compared(identity: RunIdentity, problems: set[str]) -> dict[str, object]:
    resolved = {name: identity.resolved[name] for name in sorted(problems)}
    content: dict[str, object] = json.loads(
        json.dumps(identity.model_copy(update={"resolved": resolved}).model_dump(mode="json"))
    )
    return content
