"""Mutants of CUDA kernels whose synchronisation is too weak: orders, scopes, fences, barriers, proxies, phases.

All headers of `pkb/` that a kernel includes are put in place of their `#include` lines, those of the communicator too:
a mutant is a source of its own, and lines are those of one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engine.mutants.cpp_operations import without_comments
from tests.engine.mutants.synchronisation import HEADERS
from tests.engine.mutants.trapping import with_trap

_INCLUDE = re.compile(r'^#include "pkb/(\w+\.h)".*$', re.MULTILINE)
_HOST_ONLY = frozenset({"symm_cpu.h", "bf16.h", "fp16.h"})

_REPLACEMENTS = (
    ("release", r"\bst\.release(?=\.\w+[.\w:]*)", "st.relaxed"),
    ("acquire", r"\bld\.acquire(?=\.\w+[.\w:]*)", "ld.relaxed"),
    ("scope", r"(?<=\bst\.release\.)sys\b|(?<=\bst\.relaxed\.)sys\b", "gpu"),
    ("scope", r"(?<=\bld\.acquire\.)sys\b|(?<=\bld\.relaxed\.)sys\b", "gpu"),
    ("scope", r"\b__threadfence_system(?=\(\))", "__threadfence_block"),
    ("fence", r"\b__threadfence(?:_system)?\(\)(?=;)", "((void)0)"),
    ("proxy", r'"fence\.proxy\.async[.\w:]*;"', '""'),
    ("barrier", r"\b__sync(?:threads|warp)\(\)(?=;)", "((void)0)"),
    ("barrier", r'"bar\.sync %0, %1;"', '""'),
    ("barrier", r'"barrier\.cluster\.arrive\.release;\\nbarrier\.cluster\.wait\.acquire;"', '""'),
    ("completion", r'"cp\.async\.bulk\.wait_group(?:\.read)? (?:%0|0);"', '""'),
    ("completion", r'"wgmma\.wait_group\.sync\.aligned %0;"', '""'),
    ("phase", r"(?<=\bbarrier_blocks\()[1-9]\w*(?=\))", "0"),
)
"""Kind, what it takes the place of, and the text: each match is a mutant."""


@dataclass(frozen=True)
class Weakened:
    """A kernel of which one operation is too weak.

    Attributes:
        kind: "release", "acquire", "scope", "fence", "proxy", "barrier", "completion" or "phase".
        name: File, line there, and text of the operation.
        line: Line in the mutant's source, at least 1.
        start, end: Place of the operation in the text of `inline_headers`.
        text: Text of the operation there.
        pattern: Regular expression of it.
        replacement: Text that the mutant has in its place.
        source: Text of a candidate.
        trapping: Text of the kernel that ends with an error where it reaches the operation.
    """

    kind: str
    name: str
    line: int
    start: int
    end: int
    text: str
    pattern: str
    replacement: str
    source: str
    trapping: str


def inline_headers(source: str, headers: Path = HEADERS) -> tuple[str, list[tuple[str, int]]]:
    """The source with the headers of `pkb/` in place of their includes.

    Returns:
        The text, and of each of its lines the file ("expert" or a header's name) and the line there.
    """
    lines: list[str] = []
    origins: list[tuple[str, int]] = []
    seen: set[str] = set()

    def add(name: str, text: str) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            include = _INCLUDE.match(line)
            if include and include[1] not in _HOST_ONLY and (headers / include[1]).exists():
                if include[1] not in seen:
                    seen.add(include[1])
                    add(include[1], (headers / include[1]).read_text(encoding="utf-8"))
                continue
            lines.append("" if line == "#pragma once" else line)
            origins.append((name, number))

    add("expert", source)
    return "\n".join(lines) + "\n", origins


def weakened(source: str) -> Iterator[Weakened]:
    """All mutants of a kernel, in the order of its text, except those of code that no GPU runs."""
    text, origins = inline_headers(source)
    code = _without_comments_alone(text)
    found = [
        (match.start(), kind, match, pattern, replacement)
        for kind, pattern, replacement in _REPLACEMENTS
        for match in re.finditer(pattern, code)
    ]
    for start, kind, match, pattern, replacement in sorted(found, key=lambda each: each[0]):
        line = text.count("\n", 0, start) + 1
        file, number = origins[line - 1]
        name = f"{file}:{number}: {match[0]} -> {replacement}"
        end = match.end()
        weak = text[:start] + replacement + text[end:]
        trapping = with_trap(text, start, end)
        yield Weakened(kind, name, line, start, end, match[0], pattern, replacement, weak, trapping)


def _without_comments_alone(text: str) -> str:
    """The text with comments blanked and literals kept, since instructions stand in them."""
    blanked = without_comments(text)
    return "".join(
        original if original == kept or in_literal(text, at) else kept
        for at, (original, kept) in enumerate(zip(text, blanked, strict=True))
    )


def in_literal(text: str, at: int) -> bool:
    """Whether a place of one line lies behind an opening quote and not behind `//`."""
    begin = text.rfind("\n", 0, at) + 1
    before = text[begin:at]
    quotes = before.count('"') - before.count('\\"')
    comment = before.find("//")
    return (quotes % 2 == 1 or text[at] == '"') and (comment < 0 or before.find('"') < comment)
