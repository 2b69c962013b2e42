"""What Triton's GSan prints, and what it does not see.

It ends a kernel by a device assertion, which the CUDA driver prints: a line for each thread, with the place of the
later access and one of the texts of `triton/experimental/gsan/src/GSanLibrary.cu`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from pkb_gym.engine.stages.static import calls_torch_distributed

_ASSERTION = re.compile(
    r"^([^\n:]{1,500}):(\d{1,9}): [^\n]{0,500}?\bblock: \[(\d+,\d+,\d+)\], thread: \[[\d,]+\] "
    r"Assertion `([^\n]{1,500}?)` failed\.",
    re.MULTILINE,
)

RACES = frozenset(f"{access} race detected" for access in ("Read after write", "Write after read", "Write after write"))
"""Texts of the assertions that are races; the others are limits of GSan, or assertions of the candidate."""


@dataclass(frozen=True)
class Assertion:
    """A device assertion that failed.

    Attributes:
        text: Text of the assertion.
        place: File and line of the access, "candidate.py:12".
        block: Index of the program, "3,0,0".
    """

    text: str
    place: str
    block: str

    @property
    def is_race(self) -> bool:
        """Whether it reports a race."""
        return self.text in RACES

    def __str__(self) -> str:
        """The assertion in words."""
        return f"{self.text.lower() if self.is_race else self.text} at {self.place}, program [{self.block}]"


def assertions_in(output: str) -> list[Assertion]:
    """The failed assertions of a rank, the first of each text and line.

    Args:
        output: Text that the rank wrote.
    """
    found: dict[tuple[str, str], Assertion] = {}
    for file, line, block, text in _ASSERTION.findall(output):
        place = f"{PurePosixPath(file).name}:{line}"
        found.setdefault((text, place), Assertion(text, place, block))
    return list(found.values())


_UNSEEN = (
    ("inline assembly", re.compile(r"\binline_asm")),
    (
        "CUDA beside Triton",
        re.compile(r"cpp_extension|cuda_helpers|load_inline|RawKernel|RawModule|\bctypes\b|cuda\.bindings|nvrtc"),
    ),
    ("streams, events and graphs", re.compile(r"\bcuda\s*\.\s*(?:\w*[sS]tream|Event|\w*[gG]raph)|\basync_op\b")),
    ("volatile accesses", re.compile(r"\bvolatile\s*=")),
)

_SYMMETRIC = re.compile(r"symm(?:etric)?_mem")


def unseen_synchronisation(source: str) -> str:
    """The means of synchronisation in a source whose order GSan does not know; empty for none.

    Collectives count where ranks reach each other's memory: kernels of one stream are in order without them.

    Args:
        source: Text of the candidate.
    """
    unseen = [name for name, pattern in _UNSEEN if pattern.search(source)]
    if _SYMMETRIC.search(source) and calls_torch_distributed(source) is not False:
        unseen.append("collectives")
    return ", ".join(unseen)
