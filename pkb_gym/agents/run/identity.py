"""The identity of a run: all that its results depend on, stored when it begins and compared when it is resumed."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pkb_gym.agents.protocol import Setting
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.conditions import SETTINGS, Conditions, condition_differences
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.setting_differences import SettingDifference, differences, refuse
from pkb_gym.envs.text.turn import Style

VERSIONS = ("problem_sha256", "problem_text_sha256")
"""Fields of `RunIdentity` that name the versions of problems."""


class RunIdentity(Record):
    """All that the results of a run depend on; samples, turns, problems and budgets may be raised by a later call."""

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
    problem_sha256: dict[str, str] = Field(default_factory=dict)
    """Version of each problem; empty in runs of earlier versions."""
    problem_text_sha256: dict[str, str] = Field(default_factory=dict)
    """The version as by `conditions.problem_text_sha256`; empty in runs whose `problem_sha256` are such digests."""


def read_identity(path: Path, option: str) -> RunIdentity:
    """The identity that a run stored when it began.

    Args:
        path: Path of the file.
        option: Option that names another folder, for errors.

    Raises:
        ConfigError: The file holds none.
    """
    try:
        return RunIdentity.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} does not hold the settings of its run: {reason}; {option} names another") from None


def resumed(before: RunIdentity, now: RunIdentity, folder: Path, option: str) -> RunIdentity:
    """The identity of a run that is resumed, with the problems of both calls.

    Turns may be raised, and problems be added; all else has to agree, as far as both have it.

    Args:
        before: Identity as it was stored.
        now: Identity as it is requested.
        folder: Folder of the run, for errors.
        option: Option that names another folder, for errors.

    Raises:
        ConfigError: Another setting differs.
    """
    if now.turns > before.turns:
        before = before.model_copy(update={"turns": now.turns})
    shared = before.resolved.keys() & now.resolved.keys()
    found = differences(_settings(before, shared), _settings(now, shared))
    named = {each.name.removeprefix("requested.") for each in found}
    found += [
        SettingDifference(each.setting, each.a, each.b, each.where)
        for each in condition_differences(_conditions(before, now), _conditions(now, now))
        if each.setting not in named
    ]
    refuse(folder, found, option)
    return now.model_copy(update={name: getattr(before, name) | getattr(now, name) for name in ("resolved", *VERSIONS)})


def _settings(identity: RunIdentity, problems: Set[str]) -> dict[str, object]:
    """All that is compared but the conditions of the problems."""
    content: dict[str, object] = identity.model_dump(mode="json", exclude={"resolved", *VERSIONS})
    resolved = {
        name: identity.resolved[name].model_dump(mode="json", exclude=set(SETTINGS)) for name in sorted(problems)
    }
    return content | {"resolved": resolved}


def _conditions(identity: RunIdentity, now: RunIdentity) -> dict[str, list[Conditions]]:
    """The conditions by problem; runs of earlier versions have not recorded those of the problem, and agree."""
    versions = now.problem_sha256 | identity.problem_sha256
    texts = identity.problem_text_sha256 if identity.problem_sha256 else now.problem_text_sha256
    return {
        name: [Conditions.of(config, identity.hardware, versions.get(name, ""), texts.get(name))]
        for name, config in identity.resolved.items()
    }
