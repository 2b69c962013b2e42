"""Draws the pictures of docs/rewards.md as SVG; the same data give the same bytes, with one version of matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pkb-gym",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the first comes with matplotlib; every text names all of them
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
COLUMNS = 3
BLUE, ORANGE, GREY = "#0969da", "#d1571a", "#6e7781"
SPEEDUP_TICKS = {0.125: "1/8", 1.0: "1", 4.0: "4", 16.0: "16"}
SERIES = (BLUE, ORANGE, "#1a7f37", "#8250df")


@dataclass(frozen=True)
class Curve:
    """One picture of a few lines.

    Attributes:
        title: above it.
        x_label: what is changed.
        x: its values, or names where there is no scale.
        lines: label -> values; None where there is none.
        log: whether the scale of x is logarithmic.
    """

    title: str
    x_label: str
    x: Sequence[float] | Sequence[str]
    lines: Mapping[str, Sequence[float]]
    log: bool = False


def curves(found: Sequence[Curve]) -> str:
    """A grid of small pictures, one per curve."""
    rows = -(-len(found) // COLUMNS)
    with _figure(2.9 * COLUMNS, 2.15 * rows) as (figure, text):
        for place, curve in enumerate(found, start=1):
            _curve(figure.add_subplot(rows, COLUMNS, place), curve)
        return text()


def grid(
    columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float]], labels: tuple[str, str]
) -> str:
    """A table of coloured cells with their values.

    Args:
        columns: names, from the left.
        rows: names, from below.
        values: by row, then by column.
        labels: of the columns and of the rows.
    """
    most = max(max(row) for row in values)
    with _figure(8.7, 3.6) as (figure, text):
        axes = figure.add_subplot()
        axes.grid(visible=False)
        axes.pcolormesh(values, cmap="Blues", vmin=0, vmax=1.25 * most, edgecolors="white", linewidth=1)
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                axes.text(x + 0.5, y + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=7)
        axes.set_xticks([x + 0.5 for x in range(len(columns))], columns)
        axes.set_yticks([y + 0.5 for y in range(len(rows))], rows)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        return text()


def episode(turns: Sequence[str], values: Sequence[float], returns: Mapping[str, Sequence[float]]) -> str:
    """Values of the turns of one episode, and their rewards by several presets.

    Args:
        turns: what was found, turn by turn.
        values: of each submission alone, by the default.
        returns: preset -> the return of each turn.
    """
    numbers = range(1, len(turns) + 1)
    with _figure(8.7, 2.2 * (1 + len(returns)) * 0.75) as (figure, text):
        panels = {"value of the submission alone": values} | dict(returns)
        for place, (name, heights) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            axes.bar(numbers, heights, color=GREY if place == 1 else BLUE, width=0.6)
            for x, height in zip(numbers, heights, strict=True):
                axes.annotate(f"{height:.2f}", (x, max(height, 0.0)), (0, 2), textcoords="offset points", ha="center")
            axes.margins(y=0.25)
            axes.set_title(name, loc="left")
            last = place == len(panels)
            axes.set_xticks(
                list(numbers), [f"{n}\n{turn}" for n, turn in zip(numbers, turns, strict=True)] if last else []
            )
        return text()


def noise(ratios: Sequence[float], groups: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> str:
    """The share of wrong rewards, by true ratio: one column per group, one row per kind of error.

    Args:
        ratios: true ones, rising.
        groups: group -> kind of error -> estimate -> shares.
    """
    kinds = list(next(iter(groups.values())))
    with _figure(2.2 * len(groups), 1.75 * len(kinds)) as (figure, text):
        for column, (group, errors) in enumerate(groups.items()):
            for row, kind in enumerate(kinds):
                axes = figure.add_subplot(len(kinds), len(groups), row * len(groups) + column + 1)
                for color, (estimate, shares) in zip(SERIES, errors[kind].items(), strict=False):
                    axes.plot([ratio - 1 for ratio in ratios], shares, color=color, label=estimate)
                axes.set_xscale("log")
                axes.set_ylim(-0.03, 1.03)
                axes.set_xticks([0.01, 0.1, 1.0], ["1 %", "10 %", "100 %"] if row == len(kinds) - 1 else [""] * 3)
                axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"] if column == 0 else [""] * 3)
                axes.minorticks_off()
                axes.set_title(group if row == 0 else "")
                if column == 0:
                    axes.set_ylabel(kind)
                if row == len(kinds) - 1:
                    axes.set_xlabel("true difference")
                if row == column == 0:
                    axes.legend()
        return text()


def _curve(axes: Axes, curve: Curve) -> None:
    named = isinstance(curve.x[0], str)
    places = list(range(len(curve.x))) if named else list(curve.x)
    for color, (label, values) in zip(SERIES, curve.lines.items(), strict=False):
        if named:
            axes.plot(places, values, "o", color=color, label=label, markersize=4)
        else:
            axes.plot(places, values, color=color, label=label)
    if named:
        axes.set_xticks(places, [str(name) for name in curve.x], rotation=30, ha="right")
    if curve.log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(*zip(*SPEEDUP_TICKS.items(), strict=True))
        axes.minorticks_off()
    axes.set_title(curve.title)
    axes.set_xlabel(curve.x_label)
    axes.margins(y=0.1)
    axes.locator_params(axis="y", nbins=4)
    if any(curve.lines):
        axes.legend(fontsize=6.5)


def _shortened(svg: str) -> str:
    """The same picture in half the bytes: coordinates in hundredths of a point, no comments, no indentation."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    text = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), text)
    text = re.sub(r"\s*\n(?=[MLzCQ\"])", "", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    text = re.sub(r": (?=[^;\"<>]*[;\"])|(?<=;) ", lambda space: space[0].strip(), text)
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, Callable[[], str]]]:
    """A figure and what turns it into text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="tight", facecolor="white")

        def text() -> str:
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
            return _shortened(file.getvalue())

        yield figure, text
