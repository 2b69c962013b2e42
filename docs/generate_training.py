"""Writes the learning run on docs/training.md and its pictures in docs/training/, from benchmarks/results.

python docs/generate_training.py
"""

from __future__ import annotations

from pathlib import Path

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
tables = load_module(HERE / "training_tables.py", "docs.training_tables")

PAGE, FOLDER = HERE / "training.md", HERE / "training"
BEGIN, END = "<!-- measured: python docs/generate_training.py -->", "<!-- end of measured -->"


def render(page: str) -> str:
    """The page with the figures of the result."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables.sections(tables.read())}\n\n{END}{after}"


def drawn() -> dict[Path, str]:
    """Picture -> its text."""
    return {FOLDER / name: text for name, text in tables.drawn(tables.read()).items()}


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for path, text in drawn().items():
        path.write_text(text, encoding="utf-8")
