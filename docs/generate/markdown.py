"""Markdown of tables and counts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
"""Blocks and spans of code; splitting by it gives text and code in turn."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars and asterisks of the cells stand for themselves."""
    lines = [map(_cell, head), ("---",) * len(head), *(map(_cell, row) for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def _cell(text: str) -> str:
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 problem, 2 problems, 2 weaknesses."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").splitlines()[0]


def source(thing: object) -> str:
    """The text of a docstring between "Source:" and the end of its paragraph."""
    found = re.search(r"Source: (.*?)(\n\n|$)", inspect.getdoc(thing) or "", re.DOTALL)
    assert found is not None, f"{thing} names no source"
    return " ".join(found[1].split()).rstrip(".")
