"""Results grouped by the conditions that they were judged under, so that no figure mixes what does not compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.conditions import SETTINGS, ConditionDifference, Conditions, condition_differences
from pkb_gym.metrics.results import last_of_each
from pkb_gym.metrics.sources import ResultsSource
from pkb_gym.rewards.reward import is_infrastructure_failure

BY_PROBLEM = ("dtype", "problem_sha256")
"""Settings that differ between the problems of one run; the others are the same for all of them."""

SHORT_FIRST = ("device", "world_size", "size", "protocol", "dtype", "ranks_per_gpu", "hardware", "problem_sha256")
"""Settings in the order in which names of groups take them."""


def conditions_by_problem(attempts: Iterable[Attempt]) -> dict[str, set[Conditions]]:
    """The conditions under which attempts were judged, by problem; those that were not judged have none."""
    found: dict[str, set[Conditions]] = {}
    for attempt in attempts:
        feedback = attempt.feedback
        if feedback is not None and not is_infrastructure_failure(feedback):
            found.setdefault(attempt.problem, set()).add(Conditions.of_feedback(feedback))
    return found


def differences_text(found: Iterable[ConditionDifference]) -> str:
    """Differences in words, with both values.

    Example:
        >>> differences_text(
        ...     [ConditionDifference("world_size", "4", "2"), ConditionDifference("size", "a", "b", ("X",))]
        ... )
        'world_size 4 against 2; size a against b (X)'
    """
    return "; ".join(f"{each.setting} {each.a} against {each.b}{each.where}" for each in found)


@dataclass(frozen=True)
class GroupedResults:
    """Results of several sources.

    Attributes:
        attempts: Attempts, each with its agent; where there are several groups, the agent's name has its group's.
        groups: Names of the groups; empty where all results compare.
        differing: Settings that differ between groups.
    """

    attempts: list[Attempt]
    groups: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


@dataclass
class _Group:
    """Results that compare with each other."""

    conditions: dict[str, set[Conditions]] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    def differing(self, conditions: Mapping[str, set[Conditions]]) -> set[str]:
        """The settings that keep results of other conditions out of the group."""
        if not (self.conditions and conditions):
            return set()  # nothing was judged
        found = {each.setting for each in condition_differences(self.conditions, conditions)}
        return found | {
            setting
            for setting in SETTINGS
            if setting not in BY_PROBLEM and _values(self.conditions, setting) != _values(conditions, setting)
        }

    def text_of(self, setting: str) -> str:
        """The value of a setting in words."""
        if setting == "problem_sha256":
            versions = sorted((name, each.problem_sha256) for name, of in self.conditions.items() for each in of)
            return f"problems {hashlib.sha256(repr(versions).encode()).hexdigest()[:8]}"
        values = "/".join(sorted(_values(self.conditions, setting))) or "not judged"
        return {"world_size": f"{values} ranks", "ranks_per_gpu": f"{values} ranks a GPU"}.get(setting, values)


def read_grouped(arguments: Iterable[str]) -> GroupedResults:
    """The attempts of several `PATH` or `AGENT=PATH`, by the conditions that they were judged under.

    Results of one agent from one file stay together. With those of other files they form a group where hardware,
    device, ranks, size and protocol agree, and on problems of both also dtype and version of the problem.

    Raises:
        ConfigError: An argument is wrong or its file unreadable, see `ResultsSource.parse` and `ResultsSource.read`.
    """
    return grouped([ResultsSource.parse(text).read() for text in arguments])


def grouped(sources: Iterable[Sequence[Attempt]]) -> GroupedResults:
    """The attempts of several sources; see `read_grouped`."""
    groups: list[_Group] = []
    differing: set[str] = set()
    for attempts in sources:
        for agent in dict.fromkeys(attempt.agent for attempt in attempts):
            own = [attempt for attempt in attempts if attempt.agent == agent]
            conditions = conditions_by_problem(own)
            why = [group.differing(conditions) for group in groups]
            if all(why):
                differing = differing.union(*why)
                groups.append(_Group())
                why.append(set())
            joined = groups[why.index(set())]
            joined.attempts += own
            for problem, found in conditions.items():
                joined.conditions.setdefault(problem, set()).update(found)
    if len(groups) == 1:
        return GroupedResults(last_of_each(groups[0].attempts))
    settings = tuple(setting for setting in SHORT_FIRST if setting in differing)
    names = _names(groups, settings)
    named = [
        attempt.model_copy(update={"agent": f"{attempt.agent} ({name})"})
        for group, name in zip(groups, names, strict=True)
        for attempt in group.attempts
    ]
    return GroupedResults(last_of_each(named), names, settings)


def _names(groups: Sequence[_Group], settings: Sequence[str]) -> tuple[str, ...]:
    """The shortest names that tell groups apart."""
    names: tuple[str, ...] = ()
    for count in range(1, len(settings) + 1):
        names = tuple(", ".join(group.text_of(setting) for setting in settings[:count]) for group in groups)
        if len(set(names)) == len(groups):
            break
    return names


def _values(conditions: Mapping[str, set[Conditions]], setting: str) -> set[str]:
    return {each.text_of(setting) for of_problem in conditions.values() for each in of_problem}
