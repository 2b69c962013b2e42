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
from pkb_gym.metrics.best import best_kernels
from pkb_gym.metrics.figures import agent_figures
from pkb_gym.metrics.results import results_by_agent
from pkb_gym.metrics.sources import ResultsSource, read_results
from pkb_gym.report.content import Setting, report_content
from pkb_gym.report.entry_kinds import EntryKind
from pkb_gym.report.leaderboard.entry import EntryKernel, LeaderboardEntry, ResultsDigest, complaint


@dataclass(frozen=True)
class EntryText:
    """What results do not tell; see `LeaderboardEntry`."""

    name: str
    title: str
    kind: EntryKind
    description: str
    command: str
    commit: str
    date: dt.date


def make_entry(results: Sequence[str], text: EntryText) -> LeaderboardEntry:
    """The entry of one agent's results.

    Args:
        results: as `read_results` takes them.
        text: what they do not tell.

    Raises:
        ConfigError: results cannot be read, are those of several agents, machines or protocols, or the text is of no
            use.
    """
    attempts = read_results(results)
    agents = results_by_agent(attempts)
    if len(agents) != 1:
        names = ", ".join(each.agent for each in agents)
        raise ConfigError(f"an entry is of one agent, got those of {names}; choose one by AGENT=FILE")
    setting = _setting(attempts)
    try:
        return LeaderboardEntry(
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
        )
    except ValidationError as error:
        raise ConfigError(f"no entry of the leaderboard: {complaint(error)}") from None


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
