"""A picture (SVG) of the errors in an output: one panel a rank, darker where the distance is larger."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

MAX_CELLS = 64
"""The most cells of a panel in each direction: larger tensors show the worst element of each cell."""

PANEL_PX, GAP_PX, TITLE_PX = 320, 40, 56
MIN_LOG10, MAX_LOG10 = -3.0, 1.0
"""Powers of ten of the palest and the darkest colour, in root mean squares of the expected tensor."""


def distances(got: NDArray[np.generic], expected: NDArray[np.generic]) -> NDArray[np.float64]:
    """The distance of each element, in root mean squares of the expected tensor; infinite where either is no number.

    Args:
        got: Array of the candidate, of any shape.
        expected: Array of the baseline, of the same shape.
    """
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    mine, theirs = got.astype(wide), expected.astype(wide)
    finite = theirs[np.isfinite(theirs)]
    scale = float(np.sqrt((np.abs(finite) ** 2).mean())) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(mine - theirs) / (scale or 1.0)
    apart[np.isnan(apart)] = np.inf
    apart[(mine == theirs) | (np.isnan(mine) & np.isnan(theirs))] = 0.0
    return np.asarray(apart, np.float64)


def cells(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distances as at most `MAX_CELLS` rows and columns: the last dimension is that of columns.

    A vector is folded into rows of about as many elements as there are rows.
    """
    if not apart.size:
        return np.zeros((1, 1))
    flat = apart.reshape(-1, apart.shape[-1]) if apart.ndim > 1 else _folded(apart.reshape(-1))
    for axis in (0, 1):
        count = flat.shape[axis]
        if count > MAX_CELLS:
            begins = np.arange(MAX_CELLS) * count // MAX_CELLS
            flat = np.maximum.reduceat(flat, begins, axis=axis)
    return flat


def _folded(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    width = max(1, ceil(vector.size / max(1, isqrt(vector.size))))
    padded = np.zeros(-(-vector.size // width) * width)
    padded[: vector.size] = vector
    return padded.reshape(-1, width)


def heat_map(title: str, ranks: Mapping[int, NDArray[np.float64]]) -> str:
    """The picture.

    Args:
        title: Text above all panels.
        ranks: Rank -> distances of its elements.
    """
    width = GAP_PX + len(ranks) * (PANEL_PX + GAP_PX)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TITLE_PX + PANEL_PX + GAP_PX}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{GAP_PX}" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for place, (rank, apart) in enumerate(ranks.items()):
        parts += _panel(GAP_PX + place * (PANEL_PX + GAP_PX), rank, apart)
    legend = (
        "white: equal; pale to dark: 0.001 to 10 times the root mean square of the expected tensor; black: no number"
    )
    parts.append(f'<text x="{GAP_PX}" y="{TITLE_PX + PANEL_PX + 24}" fill="#555">{legend}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(x: int, rank: int, apart: NDArray[np.float64]) -> list[str]:
    grid = cells(apart)
    rows, columns = grid.shape
    high, wide = PANEL_PX / rows, PANEL_PX / columns
    wrong = int((apart > 0).sum())
    caption = f"rank {rank}: {wrong} of {apart.size} elements differ"
    parts = [f'<text x="{x}" y="{TITLE_PX - 10}">{caption}</text>']
    for row, column in zip(*np.nonzero(grid), strict=True):
        place = f'x="{x + column * wide:.2f}" y="{TITLE_PX + row * high:.2f}" width="{wide:.2f}" height="{high:.2f}"'
        parts.append(f'<rect {place} fill="{_colour(float(grid[row, column]))}"/>')
    parts.append(f'<rect x="{x}" y="{TITLE_PX}" width="{PANEL_PX}" height="{PANEL_PX}" fill="none" stroke="#888"/>')
    return parts


def _colour(apart: float) -> str:
    if not np.isfinite(apart):
        return "#000000"
    share = min(1.0, max(0.0, (np.log10(apart) - MIN_LOG10) / (MAX_LOG10 - MIN_LOG10)))
    pale, dark = (253, 219, 199), (128, 0, 20)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(pale, dark, strict=True))
