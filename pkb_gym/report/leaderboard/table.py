"""Entries -> the table of the leaderboard, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pkb_gym.metrics.estimates import Estimate
from pkb_gym.metrics.figures import AtK, SpeedFigures, at
from pkb_gym.metrics.reach import Reach
from pkb_gym.metrics.reach_text import reach_summary
from pkb_gym.report.leaderboard.entry import LeaderboardEntry
from pkb_gym.report.markdown import escaped, markdown_table
from pkb_gym.report.tables import interval_text

HEADER = (
    *(
        "entry",
        "kind",
        "problems",
        "samples",
        "pass@1",
        "pass@k",
        "fast_1 by lower end",
        "fast_1 eager",
        "fast_1 captured",
    ),
    *("fast_1 registered", "area", "speedup over eager", "roofline", "commit", "date"),
)

INTRODUCTION = """# Leaderboard

Results of kernels and agents on the problems of this catalogue. Entries are grouped by hardware, world size and
protocol: speedups of different groups do not compare. Brackets are 95 % intervals by bootstrap over problems; problems
that were not tried are not in the figures. The file of an entry has its command, every metric, and the turns of each
problem.

[docs/reports.md](../docs/reports.md#the-leaderboard) explains the columns and how to add an entry;
[schema.json](schema.json) is the JSON schema of an entry. `pkb leaderboard table` makes this page."""

NONE = "No entries."


def leaderboard_markdown(entries: Sequence[LeaderboardEntry]) -> str:
    """The page: a table for each group of entries, best first, and a description of each entry."""
    parts = [INTRODUCTION]
    for found in entry_groups(entries):
        parts += [
            f"## {escaped(found[0].hardware)} ({found[0].device}), {_ranks(found[0])}, protocol {found[0].protocol}",
            markdown_table(HEADER, [_row(entry) for entry in found]),
            "\n".join(_source_of(entry) for entry in found),
        ]
    return "\n\n".join(parts if entries else [*parts, NONE]) + "\n"


def entry_groups(entries: Sequence[LeaderboardEntry]) -> list[list[LeaderboardEntry]]:
    """The entries of each device, hardware, protocol and world size, GPUs first; within a group the best first."""
    groups: dict[tuple[str, str, str, tuple[int, ...]], list[LeaderboardEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.device, entry.hardware, entry.protocol, entry.world_sizes), []).append(entry)
    return [sorted(found, key=_rank) for _, found in sorted(groups.items(), reverse=True)]


def _ranks(entry: LeaderboardEntry) -> str:
    numbers = ", ".join(map(str, entry.world_sizes))
    return f"{numbers} rank{'' if numbers == '1' else 's'}"


def _rank(entry: LeaderboardEntry) -> tuple[float, float, str]:
    """The sort key: by fast_1 by lower end, or measured in an entry without it; then pass@1; the greatest first."""
    leading = _leading(entry)
    fast_1 = leading.fast_1_at if leading.fast_1_low_at is None else leading.fast_1_low_at
    return -_mean(fast_1), -_mean(entry.figures.pass_at), entry.name


def _leading(entry: LeaderboardEntry) -> SpeedFigures:
    """Figures over the captured baseline where there is one: at small sizes the eager one's time is its launches."""
    return entry.figures.captured or entry.figures.eager


def _mean(figures: tuple[AtK, ...]) -> float:
    found = at(figures, 1)
    return 0.0 if found is None else found.mean


def _row(entry: LeaderboardEntry) -> tuple[str, ...]:
    figures = entry.figures
    k = len(figures.pass_at)
    log = figures.eager.log_speedup
    return (
        entry.title,
        entry.kind,
        str(sum(problem.samples > 0 for problem in figures.problems)),
        str(figures.samples),
        interval_text(at(figures.pass_at, 1), ".2f"),
        "" if k < 2 else f"{interval_text(at(figures.pass_at, k), '.2f')} (k = {k})",
        "" if (by_low := _leading(entry).fast_1_low_at) is None else interval_text(at(by_low, 1), ".2f"),
        interval_text(at(figures.eager.fast_1_at, 1), ".2f"),
        *(
            "" if over is None else interval_text(at(over.fast_1_at, 1), ".2f")
            for over in (figures.captured, figures.registered)
        ),
        interval_text(figures.eager.area, ".2f"),
        interval_text(None if log is None else _exponential(log), ".2f"),
        interval_text(figures.utilisation, ".2f"),
        entry.commit,
        entry.date.isoformat(),
    )


def _exponential(log: Estimate) -> Estimate:
    """The geometric mean of a mean logarithm, whose error has no meaning on that scale."""
    low, high = (None if end is None else math.exp(end) for end in (log.low, log.high))
    return Estimate(mean=math.exp(log.mean), standard_error=None, low=low, high=high, clusters=log.clusters)


def _source_of(entry: LeaderboardEntry) -> str:
    sizes, about = ", ".join(entry.sizes), entry.description.rstrip(".")
    reached = "" if entry.reach is None else f" {escaped(_reached(entry.reach))}"
    return (
        f"- **{escaped(entry.title)}** ([{entry.name}.json](entries/{entry.name}.json), {_ranks(entry)}, sizes "
        f"{escaped(sizes)}): {escaped(about)}.{reached}"
    )


def _reached(found: Reach) -> str:
    return f"As fast as the best kernels of {found.target}: {reach_summary(found)}."
