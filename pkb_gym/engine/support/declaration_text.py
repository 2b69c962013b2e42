"""The names in the text of a `problem.py`: nothing is imported, so that looking costs little."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DECLARATION = re.compile(
    r"""^PROBLEM(?:: Problem)? = Problem\(\s*name=["'](\w+)["'](?:,[^\n]*\s*upstream=["'](\w+)["'])?""", re.MULTILINE
)


@dataclass(frozen=True)
class DeclarationText:
    """The names in a declaration's text.

    Attributes:
        name: CamelCase, of the environment.
        upstream: File stem in ParallelKernelBench; empty where the line after the name has none.
    """

    name: str
    upstream: str


def read_declaration(text: str) -> DeclarationText | None:
    """The names that a `problem.py` declares, or None where no line begins with the declaration."""
    declared = _DECLARATION.search(text)
    return None if declared is None else DeclarationText(declared[1], declared[2] or "")
