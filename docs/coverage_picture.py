"""Draws the problems by category (rows) and family of origin (columns) as an SVG, without any library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from pkb_gym.engine.problem import Problem

CELL_WIDTH, CELL_HEIGHT = 58, 30
LEFT, TOP, RIGHT = 168, 118, 150
MARGIN = 16

STYLE = """\
  <style>
    text { font: 12px system-ui, sans-serif; fill: #1f2328; }
    .strong { font-weight: 600; }
    .empty { fill: #8c959f; opacity: .14; }
    .cell, .bar { fill: #0969da; }
    .on { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .cell, .bar { fill: #4493f8; }
    }
  </style>
"""


def render(
    problems: Sequence[Problem],
    rows: Sequence[str],
    columns: Sequence[str],
    family: Callable[[Problem], str],
    title: Callable[[str], str],
) -> str:
    """The picture as SVG text, readable on light and dark ground.

    Args:
        problems: what is counted.
        rows: categories, from above.
        columns: families of origin, from the left.
        family: of a problem.
        title: of a category.
    """
    counts = Counter((problem.category, family(problem)) for problem in problems)
    totals = Counter(problem.category for problem in problems)
    most, longest = max(counts.values(), default=1), max(totals.values(), default=1)
    width = LEFT + len(columns) * CELL_WIDTH + RIGHT
    height = TOP + len(rows) * CELL_HEIGHT + 2 * MARGIN + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{len(problems)} problems by category and origin">\n{STYLE}'
    ]
    for column, name in enumerate(columns):
        x = LEFT + column * CELL_WIDTH + CELL_WIDTH // 2
        lines.append(_text(x - 6, TOP - 10, name, turn=-38))
    for row, category in enumerate(rows):
        y = TOP + row * CELL_HEIGHT
        lines.append(_text(LEFT - 12, y + 19, title(category), anchor="end"))
        for column, name in enumerate(columns):
            x = LEFT + column * CELL_WIDTH
            number = counts[category, name]
            shade = f' fill-opacity="{0.15 + 0.4 * number / most:.2f}"' if number else ""
            lines.append(_box(x + 2, y + 2, CELL_WIDTH - 4, CELL_HEIGHT - 4, "cell" if number else "empty", shade))
            if number:
                lines.append(_text(x + CELL_WIDTH // 2, y + 19, str(number), anchor="middle", kind="on"))
        x = LEFT + len(columns) * CELL_WIDTH + 12
        length = round((RIGHT - 50) * totals[category] / longest)
        lines.append(_box(x, y + 7, length, CELL_HEIGHT - 14, "bar", ""))
        lines.append(_text(x + length + 6, y + 19, str(totals[category]), kind="strong"))
    bottom = TOP + len(rows) * CELL_HEIGHT + MARGIN + 4
    lines.append(_text(LEFT - 12, bottom, f"{len(problems)} problems", anchor="end", kind="strong"))
    by_family = Counter(family(problem) for problem in problems)
    for column, name in enumerate(columns):
        x = LEFT + column * CELL_WIDTH + CELL_WIDTH // 2
        lines.append(_text(x, bottom, str(by_family[name]), anchor="middle", kind="strong"))
    return "".join(lines) + "</svg>\n"


def _text(x: int, y: int, words: str, *, anchor: str = "start", kind: str = "", turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
    classed = f' class="{kind}"' if kind else ""
    return f'  <text x="{x}" y="{y}" text-anchor="{anchor}"{classed}{turned}>{escape(words)}</text>\n'


def _box(x: int, y: int, width: int, height: int, kind: str, more: str) -> str:
    return f'  <rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" class="{kind}"{more}/>\n'
