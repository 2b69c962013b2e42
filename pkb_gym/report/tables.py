"""The tables of solved problems in words, for pages and Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.support.printable import printable
from pkb_gym.report.categories import title_of
from pkb_gym.report.category_table import CategoryTable, Metric, Solved, TableColumn
from pkb_gym.report.content import ReportContent
from pkb_gym.report.published import published

CAPTIONS: dict[Metric, str] = {
    "right": "Problems with a right kernel, by one sample → by the best of k",
    "faster": "Problems with a right kernel that is faster than the eager baseline, by one sample → by the best of k",
    "faster than captured": "The same over the captured baseline (CUDA graphs, where the baseline could be captured)",
}


NOT_PUBLISHED = "-"


@dataclass(frozen=True)
class Head:
    """The head of a column."""

    title: str
    count: str


@dataclass(frozen=True)
class Row:
    """The row of one agent."""

    name: str
    is_published: bool
    cells: tuple[str, ...]


@dataclass(frozen=True)
class WrittenTable:
    """A table of solved problems."""

    caption: str
    header: tuple[Head, ...]
    rows: tuple[Row, ...]


def solved_tables(content: ReportContent) -> list[WrittenTable]:
    """All tables of a report."""
    return [_written(table) for table in content.tables]


def _written(table: CategoryTable) -> WrittenTable:
    known = published()
    total = sum(column.problems for column in table.columns)
    everything = Head("All", f"{total}, published {known.problems} (columns: {known.sum_of_categories})")
    return WrittenTable(
        caption=CAPTIONS[table.metric],
        header=(everything, Head("k", "samples"), *map(_head, table.columns)),
        rows=tuple(
            Row(
                name=printable(row.agent),
                is_published=row.is_published,
                cells=(
                    solved_text(row.total, None if row.is_published else total),
                    str(row.k),
                    *(
                        solved_text(row.categories.get(column.name), column.problems)
                        if not row.is_published
                        else NOT_PUBLISHED
                        for column in table.columns
                    ),
                ),
            )
            for row in table.rows
        ),
    )


def _head(column: TableColumn) -> Head:
    count = str(column.problems)
    if column.published is not None and column.published != column.problems:
        count += f", published {column.published}"
    return Head(title_of(column.name), count)


def solved_text(solved: Solved | None, of: int | None) -> str:
    """Problems solved by one sample and by the best of k; of how many, where not all were tried.

    Example:
        >>> solved_text(Solved(at_1=1.5, at_k=2.0, of=3), 8), solved_text(None, 8)
        ('1.5 → 2 of 3', '')
    """
    if solved is None:
        return ""
    text = _count(solved.at_1) if solved.at_k is None else f"{_count(solved.at_1)} → {_count(solved.at_k)}"
    return text if of is None or solved.of == of else f"{text} of {solved.of}"


def _count(expected: float) -> str:
    return f"{expected:.0f}" if abs(expected - round(expected)) < 1e-9 else f"{expected:.1f}"
