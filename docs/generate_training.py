"""Writes the learning run on docs/training.md and its pictures in docs/training/, from benchmarks/results.

python docs/generate_training.py
"""

from __future__ import annotations

from pathlib import Path

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
tables = load_module(HERE / "training_tables.py", "docs.training_tables")
comparisons = load_module(HERE / "training_comparisons.py", "docs.training_comparisons")

PAGE, FOLDER = HERE / "training.md", HERE / "training"
BEGIN, END = "<!-- measured: python docs/generate_training.py -->", "<!-- end of measured -->"


def render(page: str) -> str:
    """The page with the figures of the result."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    found = tables.read()
    texts = [tables.sections(found), comparisons.sections(found, comparisons.read_cuda())]
    written = "\n\n".join(text for text in texts if text)
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def drawn() -> dict[Path, str]:
    """Picture -> its text."""
    found = tables.read()
    texts = tables.drawn(found) | comparisons.drawn(found, comparisons.read_cuda())
    return {FOLDER / name: text for name, text in texts.items()}


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for path, text in drawn().items():
        path.write_text(text, encoding="utf-8")
