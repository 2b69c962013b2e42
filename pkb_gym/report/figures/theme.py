"""Colours, marks and fonts of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pkb_gym.engine.support.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGENT_COLOURS = 8
"""Agents beyond them share a colour and have another mark."""

NAME_CHARS = 26
"""Maximum length of an agent's label; two of them fit beside each other."""

WIDTH_IN = 4.6
"""Width of figures: 331 points, about the pixels of a telephone, so that a point of text is about a pixel there."""


MAX_TICKED = 300
"""Ratio of an axis' ends up to which there is room for several labels a decade."""

LEGEND_ROW_IN = 0.19
"""Height of one row of a legend."""

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Theme:
    """Colours by their role.

    Attributes:
        ink: Colour of text and axes.
        muted: Colour of secondary text.
        grid: Colour of the grid.
        agents: Colour of each agent.
    """

    ink: str
    muted: str
    grid: str
    agents: tuple[str, ...]

    def colour(self, agent: int) -> str:
        """The colour of an agent."""
        return self.agents[agent % len(self.agents)]


PAPER = Theme(
    ink="#1a1a1a",
    muted="#6b6b6b",
    grid="#d9d9d9",
    agents=("#0072b2", "#d55e00", "#009e73", "#b0568a", "#8a6d00", "#3d8fc7", "#5b4a9f", "#444444"),
)
"""Theme for print: white paper. Colours after Okabe and Ito, which people with colour blindness distinguish."""

PAGE = Theme(
    ink="#010101",
    muted="#020202",
    grid="#030303",
    agents=tuple(f"#04040{agent}" for agent in range(AGENT_COLOURS)),
)
"""Theme for a page: stand-ins, in whose place `page_svg` puts the variables of the page's style sheet."""

VARIABLES = {
    PAGE.ink: "var(--ink)",
    PAGE.muted: "var(--muted)",
    PAGE.grid: "var(--grid)",
    **{colour: f"var(--agent-{agent})" for agent, colour in enumerate(PAGE.agents)},
}


def mark_of(agent: int) -> str:
    """The shape of an agent's points: colour alone is lost on those who cannot see it."""
    return MARKS[(agent + agent // AGENT_COLOURS) % len(MARKS)]


def dash_of(agent: int) -> str:
    """The dashes of an agent's lines."""
    return DASHES[agent % len(DASHES)]


@contextmanager
def style(theme: Theme) -> Iterator[None]:
    """Matplotlib's settings for pictures that are drawn and saved inside."""
    import matplotlib as mpl

    settings: dict[str, Any] = {
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "pkb-gym",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": theme.ink,
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "text.parse_math": False,  # names of agents and problems are no formulas
        "hatch.linewidth": 0.5,
    }
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # the names are listed in its stub one by one
        yield


def new_figure(height_in: float = 2.9) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, without the state of pyplot.

    Args:
        height_in: Height without a legend, in inches; the width is `WIDTH_IN`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.add_subplot()


def short(name: str, max_chars: int = NAME_CHARS) -> str:
    """A name as it fits beside axes, cut in the middle: models of one family differ at the end.

    Example:
        >>> short("a-model-with-a-very-long-name-step-400")
        'a-model-with...me-step-400'
    """
    text = printable(name).replace("\n", " ")
    if len(text) <= max_chars:
        return text
    head = (max_chars - 2) // 2
    return f"{text[:head]}...{text[head + 3 - max_chars :]}"


def plain_ticks(axes: Axes, *which: Literal["x", "y"]) -> None:
    """Decimal numbers at the ticks of logarithmic axes, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in which:
        axis, (low, high) = (axes.xaxis, axes.get_xlim()) if name == "x" else (axes.yaxis, axes.get_ylim())
        subs = (1.0, 2.0, 5.0) if high < MAX_TICKED * low else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def whole_ticks(axes: Axes) -> None:
    """Whole numbers alone at the ticks below."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def add_legend(axes: Axes) -> None:
    """Below the axes, where it hides no point and leaves them the whole width."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure = axes.get_figure(root=True)
        assert figure is not None, "axes of `new_figure`"
        figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * ((len(handles) + 1) // 2))
        figure.legend(handles, labels, loc="outside lower left", ncols=2, columnspacing=1.0, fontsize=8)
