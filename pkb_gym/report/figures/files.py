"""Single pictures as files for papers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.report.figures.charts import Chart
from pkb_gym.report.figures.theme import PAPER, style

DOTS_PER_INCH = 200


def write_pictures(found: Iterable[Chart], folder: Path) -> list[Path]:
    """Writes each picture as `NAME.svg` and `NAME.png` on a white ground, and names the files.

    Raises:
        OSError: the folder cannot be written.
    """
    written = []
    for chart in found:
        with style(PAPER):
            figure = chart.draw(PAPER).figure
            for suffix in ("svg", "png"):
                data = io.BytesIO()
                metadata = {"Date": None} if suffix == "svg" else {"Software": None}
                figure.savefig(data, format=suffix, dpi=DOTS_PER_INCH, facecolor="white", metadata=metadata)
                path = folder / f"{chart.name}.{suffix}"
                write_atomically(path, data.getvalue())
                written.append(path)
    return written
