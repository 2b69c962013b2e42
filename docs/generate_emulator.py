"""Writes the measurements on docs/emulator.md, from benchmarks/data and benchmarks/results.

python docs/generate_emulator.py
"""

from __future__ import annotations

from pathlib import Path

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
tables = load_module(HERE / "emulator_tables.py", "docs.emulator_tables")

PAGE = HERE / "emulator.md"
BEGIN, END = "<!-- measured: python docs/generate_emulator.py -->", "<!-- end of measured -->"


def render(page: str) -> str:
    """The page with the measurements of the results that are there."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables.sections()}\n\n{END}{after}"


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
