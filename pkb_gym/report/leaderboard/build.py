"""Files of results -> an entry."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from pkb_gym import __version__
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.conditions import condition_differences
from pkb_gym.metrics.best import best_kernels
from pkb_gym.metrics.figures import agent_figures
from pkb_gym.metrics.groups import conditions_by_problem, differences_text
from pkb_gym.metrics.reach import Reach, reach, target_speedups
from pkb_gym.metrics.results import AgentResults, results_by_agent
from pkb_gym.metrics.sources import ResultsSource, read_results
from pkb_gym.report.content import Setting, report_content
from pkb_gym.report.entry_kinds import EntryKind
from pkb_gym.report.leaderboard.entry import SCHEMA_VERSION, EntryKernel, LeaderboardEntry, ResultsDigest, complaint


@dataclass(frozen=True)
class EntryText:
    """The parts of an entry that results lack; see `LeaderboardEntry`."""

    name: str
    title: str
    kind: EntryKind
    description: str
    command: str
    commit: str
    date: dt.date


def make_entry(results: Sequence[str], text: EntryText, target: str | None = None) -> LeaderboardEntry:
    """The entry of one agent's results.

    Args:
        results: Results, as for `read_results`.
        text: Texts of the entry.
        target: Results of another agent, such as the experts, whose best kernels may be reached.

    Raises:
        ConfigError: results cannot be read, are those of several agents, machines or protocols, the text is of no
            use, or the target was measured elsewhere or shares no timed problem.
    """
    attempts = read_results(results)
    agents = results_by_agent(attempts)
    if len(agents) != 1:
        names = ", ".join(each.agent for each in agents)
        raise ConfigError(f"an entry is of one agent, got those of {names}; choose one by AGENT=PATH")
    setting = _setting(attempts)
    try:
        return LeaderboardEntry(
            schema_version=SCHEMA_VERSION,
            **vars(text),
            package_version=__version__,
            device=setting.device,
            hardware=setting.hardware,
            protocol=setting.protocol,
            world_sizes=setting.world_sizes,
            sizes=setting.sizes,
            results=tuple(_digest(ResultsSource.parse(argument)) for argument in results),
            figures=agent_figures(agents[0]),
            kernels=_kernels(attempts),
            reach=None if target is None else _reach(agents[0], attempts, target),
        )
    except ValidationError as error:
        raise ConfigError(f"no entry of the leaderboard: {complaint(error)}") from None


def _reach(results: AgentResults, attempts: Sequence[Attempt], target: str) -> Reach:
    theirs = read_results([target])
    agents = results_by_agent(theirs)
    if len(agents) != 1:
        raise ConfigError(f"a target is one agent, got {target} of {', '.join(each.agent for each in agents)}")
    differing = condition_differences(conditions_by_problem(theirs), conditions_by_problem(attempts))
    if differing:
        raise ConfigError(f"{target} does not compare with these results: {differences_text(differing)}")
    found = reach(results, agents[0].agent, target_speedups(theirs))
    if found is None:
        raise ConfigError(f"{target} has a right and timed kernel for none of these problems")
    return found


def _setting(attempts: Sequence[Attempt]) -> Setting:
    settings = report_content(attempts).settings
    if len(settings) != 1:
        found = "; ".join(f"{each.hardware}, {each.device}, {each.protocol}" for each in settings) or "none"
        raise ConfigError(f"an entry is measured on one machine under one protocol, got {found}")
    return settings[0]


def _digest(source: ResultsSource) -> ResultsDigest:
    digest = hashlib.sha256(source.path.read_bytes()).hexdigest()
    return ResultsDigest(name=source.path.name, sha256=digest, attempts=len(source.read()))


def _kernels(attempts: Sequence[Attempt]) -> tuple[EntryKernel, ...]:
    return tuple(
        EntryKernel(
            problem=kernel.attempt.problem,
            suffix=kernel.suffix,
            source_sha256=kernel.feedback.source_sha256,
            speedup=None if (timing := kernel.feedback.timing) is None else timing.speedup,
            speedup_low=None if timing is None else timing.speedup_low,
            speedup_high=None if timing is None else timing.speedup_high,
        )
        for kernel in best_kernels(attempts)
    )
