"""The tables of a report in words, for pages and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from pkb_gym.engine.support.printable import printable
from pkb_gym.metrics.estimates import Estimate
from pkb_gym.metrics.figures import AgentFigures, SpeedFigures, at
from pkb_gym.report.categories import catalogue_counts, title_of
from pkb_gym.report.category_table import PUBLISHED_K, CategoryTable, Metric, Solved
from pkb_gym.report.content import ReportContent
from pkb_gym.report.published import published

CAPTIONS: dict[Metric, str] = {
    "right": "Right, by one sample → by the best of k",
    "faster": "Right and faster than the eager baseline",
    "faster than captured": "Right and faster than the captured baseline, where it could be captured in CUDA graphs",
}

KS_SHOWN = (1, 2, 3, 5, 8, 10, 16, 32, 64, 100)
"""The k of tables, and beside them the largest."""


@dataclass(frozen=True)
class Table:
    """A table in words.

    Attributes:
        caption: Title of the table.
        header: Titles of the columns. In them and in cells, a remark may follow in parentheses.
        rows: Rows of cells, as many as titles; the first cell names the row.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def without_empty_columns(self) -> Self:
        """The table without the columns that no row has a word in."""
        kept = [column for column in range(len(self.header)) if any(row[column] for row in self.rows)]
        header = tuple(self.header[column] for column in kept)
        return replace(self, header=header, rows=tuple(tuple(row[column] for column in kept) for row in self.rows))


def overview_table(agents: Sequence[AgentFigures]) -> Table:
    """The main figures of each agent: pass@k, fast_1 by both estimates, speed of right kernels."""
    largest_k = max((len(each.pass_at) for each in agents), default=1)
    header = ("agent", "samples", "pass@1", f"pass@{largest_k}" if largest_k > 1 else "", *_FAST_1, *_CAPTURED_FAST_1)
    return Table(
        caption="Agents",
        header=(*header, "speedup of right kernels", "roofline utilisation"),
        rows=tuple(
            (
                printable(each.agent),
                f"{each.samples} ({len(each.problems)} problem{'s' * (len(each.problems) != 1)})",
                interval_text(at(each.pass_at, 1)),
                interval_text(at(each.pass_at, largest_k)) if largest_k > 1 else "",
                *_fast_1(each.eager),
                *(("", "") if each.captured is None else _fast_1(each.captured)),
                speedup_text(each.eager.log_speedup),
                interval_text(each.utilisation, ".1%"),
            )
            for each in agents
        ),
    ).without_empty_columns()


_FAST_1 = ("fast_1 by lower end", "fast_1 as measured")
_CAPTURED_FAST_1 = ("captured fast_1 by lower end", "captured fast_1 as measured")


def _fast_1(speed: SpeedFigures) -> tuple[str, str]:
    by_low = None if speed.fast_1_low_at is None else at(speed.fast_1_low_at, 1)
    return interval_text(by_low), interval_text(at(speed.fast_1_at, 1))


def solved_tables(content: ReportContent) -> list[Table]:
    """Problems solved by category, for each metric; without problems that were tried, no table."""
    return [_written(table) for table in content.tables if table.columns]


def matrix_table(content: ReportContent) -> Table:
    """The best of each problem by agent, and how many samples are right."""
    return Table(
        caption="Problems by agents: best speedup over the eager baseline, or the most frequent failure, and right "
        "samples",
        header=("problem", *(printable(each.agent) for each in content.agents)),
        rows=tuple(
            (printable(row.problem), *("" if cell is None else cell.text for cell in row.cells))
            for row in content.matrix
        ),
    )


def published_table() -> Table:
    """The published results."""
    return Table(
        caption=f"Not measured here: {published().source}",
        header=(f"model (k = {PUBLISHED_K})", "right", "right and faster"),
        rows=tuple(
            (model.agent, *(f"{one} → {best}" for one, best in (model.right, model.faster)))
            for model in published().models
        ),
    )


def settings_table(content: ReportContent) -> Table:
    """Machines and configurations, with the evaluations of each agent."""
    counts: dict[tuple[str, ...], list[str]] = {}
    for setting in content.settings:
        key = (
            printable(setting.hardware),
            setting.device,
            ", ".join(map(str, setting.world_sizes)),
            ", ".join(map(printable, setting.sizes)),
            setting.protocol,
        )
        counts.setdefault(key, []).append(f"{printable(setting.agent)}: {setting.attempts}")
    return Table(
        caption="Settings",
        header=("hardware", "device", "ranks", "sizes", "protocol", "evaluations"),
        rows=tuple((*key, ", ".join(of_agents)) for key, of_agents in counts.items()),
    ).without_empty_columns()


def _written(table: CategoryTable) -> Table:
    catalogue = catalogue_counts()
    total = sum(catalogue.values()) + sum(column.problems for column in table.columns if column.name not in catalogue)
    rows: list[tuple[str, int, list[Solved | None]]] = [("All", total, [row.total for row in table.rows])]
    rows += [
        (title_of(column.name), column.problems, [row.categories.get(column.name) for row in table.rows])
        for column in table.columns
    ]
    return Table(
        caption=CAPTIONS[table.metric],
        header=("category", *(f"{printable(row.agent)} (k = {row.k})" for row in table.rows)),
        rows=tuple(_solved_row(title, problems, cells) for title, problems, cells in rows),
    )


def _solved_row(title: str, problems: int, cells: Sequence[Solved | None]) -> tuple[str, ...]:
    """Counts of one category; the problems that were tried stand once where they are as many for all agents."""
    tried = {cell.of for cell in cells if cell is not None}
    alike = tried.pop() if len(tried) == 1 else None
    title = f"{title} ({problems})" if alike in (None, problems) else f"{title} ({alike} of {problems})"
    return (title, *("" if cell is None else solved_text(cell, alike or problems) for cell in cells))


def solved_text(solved: Solved, of: int) -> str:
    """Problems solved by one sample and by the best of k; of how many, where these are others.

    Example:
        >>> solved_text(Solved(at_1=1.5, at_k=2.0, of=3), 8), solved_text(Solved(at_1=1.0, at_k=None, of=3), 3)
        ('1.5 → 2 of 3', '1')
    """
    text = _count(solved.at_1) if solved.at_k is None else f"{_count(solved.at_1)} → {_count(solved.at_k)}"
    return text if solved.of == of else f"{text} of {solved.of}"


def interval_text(estimate: Estimate | None, form: str = ".3f") -> str:
    """A mean with its interval; empty for None.

    Example:
        >>> interval_text(Estimate(mean=0.5, standard_error=0.1, low=0.25, high=0.75, clusters=4), ".2f")
        '0.50 (0.25 to 0.75)'
    """
    if estimate is None:
        return ""
    mean = format(estimate.mean, form)
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} ({format(estimate.low, form)} to {format(estimate.high, form)})"


def speedup_text(log_speedup: Estimate | None) -> str:
    """A geometric mean with its interval, from the mean of logarithms; empty for None.

    Example:
        >>> speedup_text(Estimate(mean=0.0, standard_error=None))
        '1.00x'
    """
    if log_speedup is None:
        return ""
    mean = f"{math.exp(log_speedup.mean):.2f}x"
    if log_speedup.low is None or log_speedup.high is None:
        return mean
    return f"{mean} ({math.exp(log_speedup.low):.2f} to {math.exp(log_speedup.high):.2f})"


def ks_shown(agents: Sequence[AgentFigures]) -> list[int]:
    """The k that tables of pass@k show."""
    largest = max((len(each.pass_at) for each in agents), default=0)
    return sorted({*(k for k in KS_SHOWN if k < largest), *([largest] if largest else [])})


def _count(expected: float) -> str:
    return f"{expected:.0f}" if abs(expected - round(expected)) < 1e-9 else f"{expected:.1f}"
