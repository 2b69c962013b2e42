"""Writes the table of attacks in docs/security.md from the tests' own list, tests/engine/attacks.py.

    python docs/generate_security.py

A test fails when the page differs from what this would write. The prose around the table is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for `tests`, which is not installed
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
PAGE = HERE / "security.md"
BEGIN, END = "<!-- Table: `python docs/generate_security.py` -->\n", "<!-- End of the table -->\n"
HEAD = ("aim", "on the CPU: disguise, finding", "on GPUs: disguise, finding", "caught by", "more disguises")


def summary() -> str:
    """The number of attacks, and the meaning of their outcomes."""
    from tests.engine.attacks import FAMILIES, members

    of_files = {on_gpus: sum(len(members(each, on_gpus=on_gpus)) for each in FAMILIES) for on_gpus in (False, True)}
    return (
        f"{len(FAMILIES)} families; {of_files[False]} disguises as files on the CPU and {of_files[True]} on GPUs.\n"
        "*passed* stands where the outputs are right, and the attack changes neither figures nor what comes after it."
    )


def table() -> str:
    """One row a family."""
    from tests.engine.attacks import FAMILIES, members

    rows = [
        (
            family.aim,
            _disguises(members(family, on_gpus=False)),
            _disguises(members(family, on_gpus=True)),
            family.layer,
            "<br>".join(f"[{Path(test).stem}](../tests/{test})" for test in family.tests) or "-",
        )
        for family in FAMILIES
    ]
    return str(parts.table(HEAD, rows))


def _disguises(candidates: list) -> str:  # type: ignore[type-arg]  # of a module that is loaded when it is needed
    lines = []
    for each in candidates:
        finding = each.outcome.replace("|", " or ")
        code = f" ({each.words[0]})" if each.outcome == "integrity" and each.words else ""
        lines.append(f"`{each.path.name}`: {finding}{code}")
    return "<br>".join(lines) or "-"


def render(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{summary()}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
