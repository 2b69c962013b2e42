"""Several environments in one run of TRL's `GRPOTrainer` or `AsyncGRPOTrainer`, by a column of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.trl import KernelTool, SubmissionTool

Factory: TypeAlias = "partial[SubmissionTool]"


def environment_factories(
    settings: Mapping[str, EpisodeSettings], tool: type[SubmissionTool] = KernelTool
) -> dict[str, Factory]:
    """The environments for TRL's `environment_factory`, where rows choose theirs by the column `environment`.

    Factories are picklable, as `AsyncGRPOTrainer` sends them to a process of its own.

    Args:
        settings: Settings of the episodes of rows, by value of the column.
        tool: Class `KernelTool`, or `SubmissionTool` beside reward functions of yours.

    Raises:
        ConfigError: There are no settings, or some do not fit every problem of their split.

    Example:
        >>> settings = EpisodeSettings(split=["AllReduce"], device="cpu", world_size=2)
        >>> factories = environment_factories({"two": settings, "four": settings.model_copy(update={"world_size": 4})})
        >>> {name: factory().reset(seed=0).splitlines()[0] for name, factory in factories.items()}
        {'two': '# AllReduce', 'four': '# AllReduce'}
    """
    if not settings:
        raise ConfigError("environment_factories: expected at least one environment, got none")
    for each in settings.values():
        each.open_session()
    return {name: partial(tool, **each.model_dump(exclude_none=True)) for name, each in settings.items()}
