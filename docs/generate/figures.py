"""Pictures as SVG texts, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
}
COLUMNS = 3
MAX_LEVEL_CHARS = 4
"""Length of the longest name of a column that stands level."""
COLOURS = ("#0969da", "#d1571a", "#1a7f37", "#8250df")
TICKS = {0.125: "1/8", 1.0: "1", 4.0: "4", 16.0: "16"}


@dataclass(frozen=True)
class Curve:
    """A small picture of a few lines.

    Attributes:
        title: Title above the picture.
        x_label: Label of the horizontal axis.
        x: Values of the horizontal axis, which is logarithmic.
        lines: Label -> values of a line, one for each of `x`.
    """

    title: str
    x_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]


def curves(found: Sequence[Curve]) -> str:
    """A grid of small pictures, one for each curve."""
    rows = -(-len(found) // COLUMNS)
    with _figure(2.9 * COLUMNS, 2.15 * rows) as (figure, text):
        for place, curve in enumerate(found, start=1):
            _curve(figure.add_subplot(rows, COLUMNS, place), curve)
        return text()


def grid(columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    """A table of coloured cells with their values; cells of 0 are empty.

    Args:
        columns: Names of the columns, from the left.
        rows: Names of the rows, from below.
        values: Values by row, then by column.
        labels: Labels of the columns and of the rows.
    """
    with _figure(8.7, 1.2 + 0.32 * len(rows)) as (figure, text):
        axes = figure.add_subplot()
        axes.grid(visible=False)
        axes.pcolormesh(values, cmap="Blues", vmin=0, vmax=1.25 * max(map(max, values)), edgecolors="white")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                words = f"{value}" if isinstance(value, int) else f"{value:.2f}"
                axes.text(x + 0.5, y + 0.5, words if value else "", ha="center", va="center")
        axes.set_xticks([x + 0.5 for x in range(len(columns))], columns)
        if max(map(len, columns)) > MAX_LEVEL_CHARS:
            for label in axes.get_xticklabels():
                label.set(rotation=30, horizontalalignment="right")
        axes.set_yticks([y + 0.5 for y in range(len(rows))], rows)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        return text()


def bars(names: Sequence[str], panels: Mapping[str, Sequence[float]]) -> str:
    """Bars with their values, a panel below another.

    Args:
        names: Names of the bars, below the last panel.
        panels: Title -> heights of a panel.
    """
    with _figure(8.7, 1.65 * len(panels)) as (figure, text):
        for place, (title, heights) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            axes.bar_label(axes.bar(range(len(names)), heights, color=COLOURS[0], width=0.6), fmt="%.2f")
            axes.margins(y=0.25)
            axes.set_title(title, loc="left")
            axes.set_xticks(range(len(names)), names if place == len(panels) else [])
        return text()


def _curve(axes: Axes, curve: Curve) -> None:
    for colour, (label, values) in zip(COLOURS, curve.lines.items(), strict=False):
        axes.plot(curve.x, values, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(*zip(*TICKS.items(), strict=True))
    axes.minorticks_off()
    axes.set(title=curve.title, xlabel=curve.x_label)
    axes.margins(y=0.1)
    axes.locator_params(axis="y", nbins=4)
    if any(curve.lines):
        axes.legend()


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, Callable[[], str]]]:
    """A figure of a size in inches, and the function that gives its SVG text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # the names are listed in its stub one by one
        figure = Figure(figsize=(width, height), layout="tight", facecolor="white")

        def text() -> str:
            file = io.StringIO()
            figure.savefig(file, format="svg")
            return file.getvalue()

        yield figure, text
