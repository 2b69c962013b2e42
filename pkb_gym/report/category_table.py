"""Problems solved by category and agent, in the layout of the published table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.figures import AgentFigures, ProblemFigures
from pkb_gym.report.categories import catalogue_counts, category_of
from pkb_gym.report.published import published

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
    is_published: bool
    """Whether it is a row of the published table, and not measured here."""
    k: int
    """Samples of which the best counts, at most 3; a problem with fewer counts with all of its own."""
    total: Solved
    categories: dict[str, Solved]
    """Figures of the tried categories, by category; empty for published rows."""


class TableColumn(Record):
    """One category."""

    name: str
    problems: int
    """Number of problems in the catalogue."""
    published: int | None
    """Number of problems in the published table."""


class CategoryTable(Record):
    """One metric by agent and category."""

    metric: Metric
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]


def category_table(figures: Sequence[AgentFigures], metric: Metric) -> CategoryTable:
    """Rows of the agents, then the published ones where there are any of the metric."""
    rows = [_row(each, metric) for each in figures if metric != "faster than captured" or each.captured is not None]
    if metric != "faster than captured":
        rows += [
            TableRow(
                agent=model.agent,
                is_published=True,
                k=PUBLISHED_K,
                total=Solved(at_1=counts[0], at_k=counts[1], of=published().problems),
                categories={},
            )
            for model in published().models
            for counts in (model.right if metric == "right" else model.faster,)
        ]
    return CategoryTable(metric=metric, columns=_columns(figures), rows=tuple(rows))


def _columns(figures: Sequence[AgentFigures]) -> tuple[TableColumn, ...]:
    counts = catalogue_counts()
    for name in sorted({category_of(problem.problem) for each in figures for problem in each.problems} - set(counts)):
        counts[name] = len({p.problem for each in figures for p in each.problems if category_of(p.problem) == name})
    of_published = {category.name: category.problems for category in published().categories}
    return tuple(
        TableColumn(name=name, problems=count, published=of_published.get(name)) for name, count in counts.items()
    )


def _row(figures: AgentFigures, metric: Metric) -> TableRow:
    k = min(PUBLISHED_K, max((len(problem.pass_at) for problem in figures.problems), default=1))
    tried = [problem for problem in figures.problems if problem.pass_at]
    by_category: dict[str, list[ProblemFigures]] = {}
    for problem in tried:
        by_category.setdefault(category_of(problem.problem), []).append(problem)
    return TableRow(
        agent=figures.agent,
        is_published=False,
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
