"""The settings that differ between results and the call that adds to them, and the error that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.errors import ConfigError

MAX_NAMED = 4
"""Differences that an error names."""


@dataclass(frozen=True)
class SettingDifference:
    """One setting that differs between a run and the call that resumes it.

    Attributes:
        name: Name of the setting.
        before: Value as it was recorded.
        now: Value as it is requested.
        where: Text behind the values.
    """

    name: str
    before: object
    now: object
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name} was {self.before!r}, is {self.now!r}{self.where}"


def refuse_differences(where: Path, before: Mapping[str, object], now: Mapping[str, object], option: str) -> None:
    """Sees to it that results are added to under the configuration that they were begun under.

    Args:
        where: Folder or file of the results, for errors.
        before: Configuration as it was recorded.
        now: Configuration as it is requested.
        option: Option that names another place, for errors.

    Raises:
        ConfigError: The configurations differ; the message names the first differences.
    """
    refuse(where, differences(before, now), option)


def refuse(where: Path, found: Sequence[SettingDifference], option: str) -> None:
    """Raises an error that names differences, if there are any; see `refuse_differences`."""
    if found:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise ConfigError(
            f"{where} holds results under another configuration: {'; '.join(map(str, found[:MAX_NAMED]))}{more}. "
            f"Give the same options to resume, or another {option}"
        )


def differences(before: Mapping[str, object], now: Mapping[str, object], within: str = "") -> list[SettingDifference]:
    """The differences between two configurations, by name; nested ones are compared by field.

    Example:
        >>> print(*differences({"turns": 1, "requested": {"size": "tiny"}}, {"turns": 1, "requested": {"size": "big"}}))
        requested.size was 'tiny', is 'big'
    """
    found: list[SettingDifference] = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{within}{name}.")
        elif old != new:
            found.append(SettingDifference(f"{within}{name}", old, new))
    return found
