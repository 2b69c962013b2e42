"""The page: one file that opens from the disk, asks no network, and reads nothing of a candidate as markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.printable import printable
from pkb_gym.report.bundle import Bundle, bundle_of
from pkb_gym.report.content import ReportContent
from pkb_gym.report.embedding import csp_hash, json_for_script
from pkb_gym.report.figures import charts, page_svg
from pkb_gym.report.figures.theme import PAGE, style
from pkb_gym.report.tables import solved_tables

FOLDER = Path(__file__).with_name("page")
SCRIPTS = ("data.js", "colours.js", "diff.js", "drawings.js", "viewer.js", "list.js", "keys.js")
TITLE = "ParallelKernelBench report"
MAX_BYTES = 5_000_000


@dataclass(frozen=True)
class PageChart:
    """A picture on the page; see `Chart`."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
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
        pictures.append(PageChart(chart.name, chart.title, chart.caption, chart.header, chart.rows, Markup(svg)))
    css = _file("page.css")
    script = "".join(_file(name) for name in SCRIPTS)
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("page.html.jinja")

    def page(bundle: Bundle) -> str:
        return template.render(
            title=TITLE,
            policy=_policy(script, css),
            style=Markup(css),
            script=Markup(script),
            summary=_summary(content, attempts),
            tables=solved_tables(content),
            notes=content.notes,
            agents=[printable(each.agent) for each in content.agents],
            charts=pictures,
            settings=_settings(content),
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
    problems = {attempt.problem for attempt in attempts}
    agents = ", ".join(printable(each.agent) for each in content.agents)
    return f"{len(attempts)} attempts at {len(problems)} problems by {agents}; pkb-gym {content.package_version}."


def _settings(content: ReportContent) -> list[tuple[str, ...]]:
    return [
        (
            printable(setting.agent),
            printable(setting.hardware),
            setting.device,
            ", ".join(map(str, setting.world_sizes)),
            ", ".join(map(printable, setting.sizes)),
            setting.protocol,
            str(setting.attempts),
        )
        for setting in content.settings
    ]


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
