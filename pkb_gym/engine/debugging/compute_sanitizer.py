"""Findings of compute-sanitizer, parsed from its output.

A report is a headline and indented lines, each behind "=========": the place in device code, threads, and frames of the
device and the host (Compute Sanitizer User Manual, the sections of the four tools). Places are written as
"at f(int *)+0xd0 in kernel.cu:9", by older versions as "at 0xd0 in kernel.cu:9:f(int *)".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE = re.compile(r"^=========( *)(.*)$", re.MULTILINE)
MAX_LINE_CHARS = 2000
"""A candidate writes such lines too; places are looked for again and again in each."""

_INDENTATION = 2
"""Spaces in front of the lines of a report, at least; one stands in front of its headline."""

_NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|(?:ERROR|RACECHECK|LEAK) SUMMARY|Target application|Error: process|Warning: |Info: |$"
)
"""Headlines of what is none. Hazards of severity warning may be meant, as by the manual's section on racecheck."""

_CALL_FAILED = "Program hit "
"""Headline of a call of CUDA that failed: mostly what comes of another finding."""

_PROBED = "cuGetProcAddress"
"""A runtime newer than its driver asks for functions that there are none of."""

_ACCESS = re.compile(r"^(?:at|and (?:Read|Write) access at) ")
_THREADS = re.compile(r" \[\d+ hazards\]$")
_OFFSET = re.compile(r"(?<=\))\+0x[0-9a-f]+|\b0x[0-9a-f]+ in (?=.*:\d+:)")


@dataclass
class GpuFinding:
    """One report.

    Attributes:
        headline: The first line of the report.
        lines: The lines below the headline.
    """

    headline: str
    lines: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The headline with the places in device code, without threads and offsets: one line for all threads."""
        places = [line for line in self.lines if _ACCESS.match(line)]
        return _OFFSET.sub("", " ".join([self.headline, *(_THREADS.sub("", place) for place in places)]))


def gpu_findings(output: str) -> list[GpuFinding]:
    """The reports of a run; failed calls alone where there is nothing else.

    Args:
        output: Output of all ranks, one after the other.
    """
    found = [one for one in _reports(output) if not _NO_FINDING.match(one.headline) and _PROBED not in one.headline]
    return [one for one in found if not one.headline.startswith(_CALL_FAILED)] or found


def _reports(output: str) -> Iterator[GpuFinding]:
    current: GpuFinding | None = None
    for spaces, text in _LINE.findall(output):
        if len(spaces) < _INDENTATION:
            if current is not None:
                yield current
            current = GpuFinding(text[:MAX_LINE_CHARS].strip())
        elif current is not None:
            current.lines.append(text[:MAX_LINE_CHARS].strip())
    if current is not None:
        yield current
