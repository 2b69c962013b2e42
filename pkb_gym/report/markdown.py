"""The Markdown twin of the page: the same tables and figures, without the trajectories."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.support.printable import printable
from pkb_gym.report.content import ReportContent
from pkb_gym.report.figures.charts import charts
from pkb_gym.report.tables import WrittenTable, solved_tables

ACTIVE = re.compile(r"([\\`*_\[\]<>&|#~!])")


def report_markdown(content: ReportContent) -> str:
    """The report as text for a README, an issue or a terminal."""
    parts = ["# ParallelKernelBench report", f"pkb-gym {content.package_version}."]
    for table in solved_tables(content):
        parts += [f"## {escaped(table.caption)}", _solved(table)]
    parts.append("\n".join(f"- {escaped(note)}" for note in content.notes))
    for chart in charts(content):
        parts += [f"## {escaped(chart.title)}", escaped(chart.caption), markdown_table(chart.header, chart.rows)]
    header = ("agent", "hardware", "device", "ranks", "sizes", "protocol", "attempts")
    rows = [
        (
            *(setting.agent, setting.hardware, setting.device, ", ".join(map(str, setting.world_sizes))),
            *(", ".join(setting.sizes), setting.protocol, str(setting.attempts)),
        )
        for setting in content.settings
    ]
    parts += ["## Settings", markdown_table(header, rows)]
    return "\n\n".join(parts) + "\n"


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


def _solved(table: WrittenTable) -> str:
    header = ("agent", *(f"{head.title} ({head.count})" for head in table.header))
    rows = [(f"{row.name} (published)" if row.is_published else row.name, *row.cells) for row in table.rows]
    return markdown_table(header, rows)
