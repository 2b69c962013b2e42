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

NAME_CHARS = 30
"""Maximum length of a label; longer names would leave no room for the axes."""

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


def new_figure(width_in: float = 7.0, height_in: float = 3.8) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, without the state of pyplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.add_subplot()


def short(name: str) -> str:
    """A name as it fits beside axes.

    Example:
        >>> short("a-model-with-a-very-long-name-of-its-own")
        'a-model-with-a-very-long-na...'
    """
    text = printable(name).replace("\n", " ")
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 3]}..."


def plain_ticks(axes: Axes, *which: Literal["x", "y"]) -> None:
    """Decimal numbers at the ticks of logarithmic axes, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in which:
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def add_legend(axes: Axes) -> None:
    """Outside of the axes, where it hides no point."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
