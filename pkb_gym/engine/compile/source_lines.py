"""Lines of a candidate's source by places in its library, read off its debug information by addr2line.

The library is a candidate's: it is read in the compilers' sandbox, and nothing of it is loaded.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.errors import InfrastructureError

LIMITS = CompilerLimits(timeout_s=10.0, memory_kib=2 << 20)
MAX_PLACES = 16
CANDIDATES = ("kernel.cpp", "kernel.cu")
_ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
_LOCATION = re.compile(r"(?P<file>.*):(?P<line>\d{1,9}|\?)(?: \(discriminator \d+\))?")
_OWN_HEADER = re.compile(r".*/include/(pkb/\w+\.h)")


@dataclass(frozen=True)
class SourceLine:
    """A line of the candidate, or of a header of the dialect.

    Attributes:
        file: "kernel.cpp", "kernel.cu" or "pkb/....h".
        line: Line number, from 1.
        function: Function that the line belongs to. For inlined code it may be the surrounding function.
    """

    file: str
    line: int
    function: str

    @property
    def is_candidates(self) -> bool:
        """Whether the candidate wrote it."""
        return self.file in CANDIDATES

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def source_lines(binary: bytes, stacks: Sequence[Sequence[int]]) -> list[list[SourceLine]]:
    """The lines of some stacks, inlined calls included; of the candidate and `pkb/` headers alone.

    Args:
        binary: Shared object; one without debug information has no lines.
        stacks: Offsets of instructions in each stack, innermost first; at most `MAX_PLACES` are looked up.

    Returns:
        The lines of each stack, innermost first.
    """
    looked_up = [[f"{place:#x}" for place in places[:MAX_PLACES]] for places in stacks]
    addresses = list(dict.fromkeys(address for places in looked_up for address in places))
    lines_of = _lines_at(binary, addresses) if addresses and shutil.which("addr2line") is not None else {}
    return [[line for address in places for line in lines_of.get(int(address, 16), ())] for places in looked_up]


def _lines_at(binary: bytes, addresses: Sequence[str]) -> dict[int, list[SourceLine]]:
    """One run for all: however slow a hostile library makes it, there is one deadline."""
    command = ["addr2line", "-a", "-C", "-f", "-i", "-e", "kernel.so", *addresses]
    try:
        run = run_sandboxed(command, files={"kernel.so": binary}, limits=LIMITS)
    except InfrastructureError:
        return {}  # a report without lines is better than none
    found: dict[int, list[SourceLine]] = {}
    here: list[SourceLine] = []
    function = None
    for text in run.output.splitlines() if run.status == 0 else ():
        if _ADDRESS.fullmatch(text):
            here, function = found.setdefault(int(text, 16), []), None
        elif function is None:
            function = text
        else:
            line = _line(function, text)
            here += [] if line is None else [line]
            function = None
    return found


def _line(function: str, location: str) -> SourceLine | None:
    match = _LOCATION.fullmatch(location)
    if match is None or match["line"] in ("?", "0"):
        return None
    file = match["file"]
    own_header = _OWN_HEADER.fullmatch(file)
    if own_header:
        file = own_header[1]
    else:
        file = file.rpartition("/")[2]
        if file not in CANDIDATES:
            return None
    return SourceLine(file, int(match["line"]), function.partition("(")[0][-200:])
