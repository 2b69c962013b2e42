"""The Markdown twin of the page: the same tables and figures, without the trajectories."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.support.printable import printable
from pkb_gym.report.content import ReportContent
from pkb_gym.report.figures.charts import charts
from pkb_gym.report.tables import Table, matrix_table, overview_table, published_table, settings_table, solved_tables

ACTIVE = re.compile(r"([\\`*_\[\]<>&|#~!])")


def report_markdown(content: ReportContent) -> str:
    """The report as text for a README, an issue or a terminal."""
    parts = ["# ParallelKernelBench report", f"pkb-gym {content.package_version}."]
    parts += _section(overview_table(content.agents))
    parts.append("\n".join(f"- {escaped(note)}" for note in content.notes))
    for table in (matrix_table(content), *solved_tables(content), published_table()):
        parts += _section(table)
    for chart in charts(content):
        parts += [
            f"## {escaped(chart.title)}",
            escaped(chart.caption),
            markdown_table(chart.table.header, chart.table.rows),
        ]
    return "\n\n".join([*parts, *_section(settings_table(content))]) + "\n"


def _section(table: Table) -> list[str]:
    return [f"## {escaped(table.caption)}", markdown_table(table.header, table.rows)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table whose cells hold text, never markup; names of agents stand in headers too.

    Example:
        >>> print(markdown_table(("agent", "<right>"), [("a|<b>", "1")]))
        | agent | \<right\> |
        | --- | --- |
        | a\|\<b\> | 1 |
    """
    titles, *cells = ([escaped(cell) for cell in row] for row in (header, *rows))
    lines = [titles, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    r"""Text of others as it may stand in Markdown: on one line, without markup and control characters.

    Example:
        >>> escaped("a\n*b*")
        'a \\*b\\*'
    """
    return ACTIVE.sub(r"\\\1", " ".join(printable(text).split()))
