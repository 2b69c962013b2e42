"""The episodes of a run, and the configuration of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pkb_gym.engine.errors import ConfigError, SizeError
from pkb_gym.engine.problem import CATEGORIES, Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import check_memory
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import find_problem

SPLITS = ("all", "train", "test", *CATEGORIES)


@dataclass
class RunWorkload:
    """The problems of a run.

    Attributes:
        problems: Problems that fit the configuration, in order.
        resolved: Configuration by problem, where a source does not decide it.
        skipped: Reason why a problem does not fit, by problem.
    """

    problems: list[Problem] = field(default_factory=list)
    resolved: dict[str, ResolvedConfig] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def choose_problems(choices: Sequence[str]) -> list[Problem]:
    """The problems of names, splits and categories, each once, in the order in which they are named.

    Args:
        choices: Names such as "AllReduce", "all", "train", "test", or categories; several in one text, with commas.

    Raises:
        ProblemNotFound: A choice is none of these.
    """
    names: dict[str, None] = {}
    for word in (part.strip() for each in choices for part in each.split(",")):
        names |= dict.fromkeys(split_names(word) if word in SPLITS else [find_problem(word).name] if word else [])
    return [find_problem(name) for name in names]


def resolve_all(problems: Sequence[Problem], requested: EvalConfig, machine: Machine) -> RunWorkload:
    """Resolves a configuration for each problem; problems that it does not fit are left out, with the reason.

    Args:
        problems: Problems, in order.
        requested: Configuration as requested.
        machine: Machine that judges.

    Raises:
        ConfigError: The configuration cannot be met there, or fits none of the problems.
    """
    found = RunWorkload()
    for problem in problems:
        try:
            config = machine.resolve(requested, problem)
        except SizeError as error:
            found.skipped[problem.name] = str(error)
            continue
        try:
            check_memory(problem, config, machine)
        except ConfigError as error:
            found.skipped[problem.name] = str(error)
            continue
        found.problems.append(problem)
        found.resolved[problem.name] = config
    if not found.problems:
        why = next(iter(found.skipped.values()), "none is named")
        raise ConfigError(f"no problem to play: {why}")
    return found
