"""Entries -> pictures of their figures, one set for each group, for pages on light and dark grounds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from pkb_gym import __version__
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.report.content import ReportContent
from pkb_gym.report.figures import charts
from pkb_gym.report.figures.svg import page_svg
from pkb_gym.report.figures.theme import PAGE, style
from pkb_gym.report.leaderboard.entry import LeaderboardEntry
from pkb_gym.report.leaderboard.table import entry_groups

SHOWN = ("fast_p_eager", "failure_modes", "turns")
"""Pictures of a few lines or bars; those by problem and of effort are left to reports."""

_PAGE_CSS = Path(__file__).resolve().parent.parent / "page" / "page.css"
_COLOURS = re.compile(r"^:root \{.*?^@media [^\n]*\{.*?^\}\n", re.DOTALL | re.MULTILINE)
"""The colours of the report's page, for light and dark, at the top of its style sheet."""


def write_leaderboard_pictures(entries: Sequence[LeaderboardEntry], folder: Path) -> list[Path]:
    """Writes each picture as `DEVICE-PROTOCOL-NAME.svg`, and names the files.

    A picture shows the entries of one hardware, protocol and world size. Of several groups with one device and
    protocol, the later ones have a number in their names.

    Raises:
        OSError: the folder cannot be written.
    """
    written: list[Path] = []
    for found in entry_groups(entries):
        stem = f"{found[0].device}-{found[0].protocol}"
        number = sum(path.name.startswith(f"{stem}-") and path.name.endswith(f"-{SHOWN[0]}.svg") for path in written)
        prefix = stem if not number else f"{stem}-{number + 1}"
        for name, text in leaderboard_pictures(found).items():
            path = folder / f"{prefix}-{name}.svg"
            write_atomically(path, text)
            written.append(path)
    return written


def leaderboard_pictures(entries: Sequence[LeaderboardEntry]) -> dict[str, str]:
    """Name -> SVG, of entries of one group.

    Colours follow the viewer's light or dark theme, by a media query in the picture. The description holds
    `figures_digest`, so that a picture of other figures is recognised.
    """
    agents = tuple(entry.figures.model_copy(update={"agent": entry.title}) for entry in entries)
    content = ReportContent(
        package_version=__version__, sources=(), agents=agents, tables=(), matrix=(), settings=(), roofline=(), notes=()
    )
    found = {}
    for chart in charts(content):
        if chart.name in SHOWN:
            with style(PAGE):
                svg = page_svg(chart.draw(PAGE), chart.name, chart.title)
            found[chart.name] = _standalone(svg, chart.caption, figures_digest(entries))
    return found


def figures_digest(entries: Sequence[LeaderboardEntry]) -> str:
    """A digest of all that the pictures are drawn from: titles and figures."""
    texts = [f"{entry.title}\n{entry.figures.model_dump_json()}" for entry in entries]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _standalone(svg: str, caption: str, digest: str) -> str:
    """An element of a page as a file of its own."""
    colours = _COLOURS.match(_PAGE_CSS.read_text(encoding="utf-8"))
    assert colours is not None, "the style sheet begins with its colours"
    sheet = (
        f"{colours[0]}svg {{ font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; }}\n"
        "svg * { stroke-linejoin: round; stroke-linecap: butt; }"
    )
    start = svg.index(">") + 1
    head = f"<desc>{escape(caption)} Figures {digest}.</desc><style>{escape(sheet)}</style>"
    return f"{svg[:start]}{head}{svg[start:]}\n"
