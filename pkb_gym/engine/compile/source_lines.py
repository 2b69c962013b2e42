"""Lines of a candidate's source by places in its library, read off its debug information by addr2line.

The library is a candidate's: it is read in the compilers' sandbox, and nothing of it is loaded.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.compile.sandboxed_compiler import Limits, run_sandboxed
from pkb_gym.engine.errors import InfrastructureError

LIMITS = Limits(timeout_s=10.0, memory_kib=2 << 20)
MOST_PLACES = 16
CANDIDATES = ("kernel.cpp", "kernel.cu")
_LOCATION = re.compile(r"(?P<file>.*):(?P<line>\d+|\?)(?: \(discriminator \d+\))?")
_OWN_HEADER = re.compile(r".*/include/(pkb/\w+\.h)")


@dataclass(frozen=True)
class SourceLine:
    """A line of the candidate, or of a header of the dialect.

    Attributes:
        file: "kernel.cpp", "kernel.cu" or "pkb/....h".
        line: from 1.
        function: that it belongs to. Little is known of functions that were inlined: it may be the one around it.
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


def source_lines(binary: bytes, places: Sequence[int]) -> list[SourceLine]:
    """The lines at some places, innermost first, inlined calls included; of the candidate and `pkb/` headers alone.

    Args:
        binary: the shared object; one without debug information has no lines.
        places: offsets of instructions in it, innermost first; no more than `MOST_PLACES` are looked up.
    """
    if not places or shutil.which("addr2line") is None:
        return []
    addresses = [f"{place:#x}" for place in places[:MOST_PLACES]]
    try:
        run = run_sandboxed(
            ["addr2line", "-C", "-f", "-i", "-e", "kernel.so", *addresses],
            files={"kernel.so": binary},
            limits=LIMITS,
        )
    except InfrastructureError:
        return []  # a report without lines is better than none
    if run.status != 0:
        return []
    lines = run.output.splitlines()
    found = [_line(function, location) for function, location in zip(lines[::2], lines[1::2], strict=False)]
    return [line for line in found if line is not None]


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
