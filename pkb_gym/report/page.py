"""The page: one file that opens from the disk, asks no network, and reads nothing of a candidate as markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.printable import printable
from pkb_gym.report.bundle import Bundle, bundle_of
from pkb_gym.report.categories import title_of
from pkb_gym.report.content import ReportContent
from pkb_gym.report.embedding import csp_hash, json_for_script
from pkb_gym.report.figures import Chart, charts, page_svg
from pkb_gym.report.figures.theme import PAGE, style
from pkb_gym.report.problem_matrix import MatrixRow
from pkb_gym.report.tables import overview_table, published_table, settings_table, solved_tables

FOLDER = Path(__file__).with_name("page")
SCRIPTS = ("data.js", "colours.js", "diff.js", "drawings.js", "viewer.js", "list.js", "keys.js")
WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Places within a name, such as ReduceScatter, where a line may end."""

MAX_NAMED = 4
"""Number of agents up to which the summary names them."""

TITLE = "ParallelKernelBench report"
MAX_BYTES = 5_000_000


@dataclass(frozen=True)
class PageChart:
    """A picture on the page: a `Chart` as SVG."""

    chart: Chart
    svg: str


def page_html(content: ReportContent, attempts: Sequence[Attempt], max_bytes: int = MAX_BYTES) -> str:
    """The page as text.

    Args:
        content: Figures and tables.
        attempts: Attempts whose details are shown.
        max_bytes: Size of the page; details of attempts are left out until it is kept, with a note on the page.

    Raises:
        ConfigError: a library of the extra `report` is missing, or tables and pictures alone are larger.
    """
    try:
        import matplotlib as mpl
        from jinja2 import Environment, FileSystemLoader
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigError(f"a page needs {error.name}; install pkb-gym[report]") from None
    assert mpl.__name__, "imported to see that it is here"
    pictures = []
    for chart in charts(content):
        with style(PAGE):
            svg = page_svg(chart.draw(PAGE), chart.name, chart.title)
        pictures.append(PageChart(chart, Markup(svg)))
    css = _file("page.css")
    script = "".join(_file(name) for name in SCRIPTS)
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = printable
    environment.filters["breakable"] = lambda text: Markup("<wbr>").join(WORD_STARTS.split(text))
    template = environment.get_template("page.html.jinja")

    def page(bundle: Bundle) -> str:
        return template.render(
            title=TITLE,
            policy=_policy(script, css),
            style=Markup(css),
            script=Markup(script),
            summary=_summary(content, attempts),
            overview=overview_table(content.agents),
            notes=content.notes,
            matrix=_matrix(content),
            solved=[*solved_tables(content), published_table()],
            agents=[printable(each.agent) for each in content.agents],
            charts=pictures,
            settings=settings_table(content),
            left_out=bundle.left_out,
            index=Markup(json_for_script(bundle.index)),
            chunks=bundle.chunks,
        )

    room = max_bytes - len(page(bundle_of([], max_bytes)).encode())
    if room < 0:
        raise ConfigError(f"tables and pictures alone take more than {max_bytes} bytes; give fewer results")
    return page(bundle_of(attempts, room))


def _policy(script: str, css: str) -> str:
    """A content security policy that allows this script and style, and no network at all."""
    return (
        f"default-src 'none'; script-src {csp_hash(script)}; style-src {csp_hash(css)}; base-uri 'none'; "
        "form-action 'none'"
    )


def _summary(content: ReportContent, attempts: Sequence[Attempt]) -> str:
    count = len({attempt.problem for attempt in attempts})
    problems = f"{count} problem{'s' * (count != 1)}"
    names = ", ".join(printable(each.agent) for each in content.agents)
    agents = names if len(content.agents) <= MAX_NAMED else f"{len(content.agents)} agents"
    return f"{len(attempts)} attempts at {problems} by {agents}; pkb-gym {content.package_version}."


def _matrix(content: ReportContent) -> list[tuple[str, list[MatrixRow]]]:
    """The rows of the matrix by title of their category."""
    return [
        (title_of(category), list(rows)) for category, rows in groupby(content.matrix, key=lambda row: row.category)
    ]


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
