"""Problems solved by category and agent, with the categories of the published table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.figures import AgentFigures, ProblemFigures
from pkb_gym.report.categories import catalogue_counts, category_of

Metric: TypeAlias = Literal["right", "faster", "faster than captured"]

PUBLISHED_K = 3
"""Samples of the published table."""


class Solved(Record):
    """Problems solved, in expectation: a sum of pass@k or fast_1@k over problems."""

    at_1: float
    at_k: float | None
    """Figure with k samples; None where k is 1."""
    of: int
    """Problems that were tried."""


class TableRow(Record):
    """One agent."""

    agent: str
    k: int
    """Samples of which the best counts, at most 3; a problem with fewer counts with all of its own."""
    total: Solved
    categories: dict[str, Solved]
    """Figures of the tried categories, by category."""


class TableColumn(Record):
    """One category."""

    name: str
    problems: int
    """Number of problems in the catalogue."""


class CategoryTable(Record):
    """One metric by agent and category."""

    metric: Metric
    columns: tuple[TableColumn, ...]
    """The categories that some agent tried."""
    rows: tuple[TableRow, ...]


def category_table(figures: Sequence[AgentFigures], metric: Metric) -> CategoryTable:
    """One row for each agent that has the metric."""
    rows = [_row(each, metric) for each in figures if metric != "faster than captured" or each.captured is not None]
    tried = {name for row in rows for name in row.categories}
    counts = catalogue_counts()
    for name in sorted(tried - set(counts)):
        counts[name] = len({p.problem for each in figures for p in each.problems if category_of(p.problem) == name})
    return CategoryTable(
        metric=metric,
        columns=tuple(TableColumn(name=name, problems=count) for name, count in counts.items() if name in tried),
        rows=tuple(rows),
    )


def _row(figures: AgentFigures, metric: Metric) -> TableRow:
    k = min(PUBLISHED_K, max((len(problem.pass_at) for problem in figures.problems), default=1))
    tried = [problem for problem in figures.problems if problem.pass_at]
    by_category: dict[str, list[ProblemFigures]] = {}
    for problem in tried:
        by_category.setdefault(category_of(problem.problem), []).append(problem)
    return TableRow(
        agent=figures.agent,
        k=k,
        total=_solved(tried, metric, k),
        categories={name: _solved(problems, metric, k) for name, problems in by_category.items()},
    )


def _solved(problems: Sequence[ProblemFigures], metric: Metric, k: int) -> Solved:
    chances = [_chances(problem, metric) for problem in problems]
    at_k = sum(of_problem[min(k, len(of_problem)) - 1] for of_problem in chances)
    return Solved(
        at_1=round(sum(of_problem[0] for of_problem in chances), 6),
        at_k=round(at_k, 6) if k > 1 else None,
        of=len(problems),
    )


def _chances(problem: ProblemFigures, metric: Metric) -> tuple[float, ...]:
    if metric == "right":
        return problem.pass_at
    if metric == "faster":
        return problem.fast_1_at
    assert problem.captured_fast_1_at is not None, "the agent was compared with captured baselines"
    return problem.captured_fast_1_at
