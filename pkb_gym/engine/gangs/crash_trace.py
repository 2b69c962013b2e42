"""Reads the stack trace of a rank that a signal ended; see `debugging/stack_trace.cpp`.

It comes by the rank's stderr, where a candidate can write whatever it likes: it is shown, and decides nothing.
"""

from __future__ import annotations

import re

from pkb_gym.engine.wire.orders import FILE_NAME

_TRACE = re.compile(
    r"^pkb-trace \d{1,3}(?: of (?P<library>\d{1,3}))?(?P<places>(?: [0-9a-f]{1,12}:(?:at|by))*)$", re.MULTILINE
)


def places_in(output: str) -> list[int]:
    """Offsets in the candidate's library where a rank stood, innermost first.

    Args:
        output: Output of the rank; its last trace counts.
    """
    traces = list(_TRACE.finditer(output))
    if not traces:
        return []
    places = (place.split(":") for place in traces[-1]["places"].split())
    # A return address belongs to what follows the call, unless one looks just before it.
    return [int(offset, 16) - (kind == "by") for offset, kind in places]


def traces_of(output: str, library: int) -> str:
    """The traces of one rank of a process that runs several, each in a copy of the library.

    Args:
        output: Output of the process.
        library: Number of the copy, which is that of the rank; a process of one copy does not name it.
    """
    return "\n".join(trace[0] for trace in _TRACE.finditer(output) if int(trace["library"] or 0) == library)


_PYTHON = re.compile(
    rf'^  File "(?:[^"\n]*/)?(?<!rankside/){re.escape(FILE_NAME)}", line (\d{{1,6}}) in (\w+)$', re.MULTILINE
)
"""Not of the rank's own program, which has the same name."""
_DUMP = re.compile(r"^(?:Fatal Python error: |Current thread |Thread )", re.MULTILINE)


def python_lines_in(output: str) -> list[str]:
    """Lines of a candidate of the python dialect where a rank stood, innermost first, as `faulthandler` writes them.

    Args:
        output: Output of the rank; of several threads the last that runs the candidate counts.
    """
    dumps = [_PYTHON.findall(part) for part in _DUMP.split(output)[1:]]
    last: list[tuple[str, str]] = next((lines for lines in reversed(dumps) if lines), [])
    return [f"{FILE_NAME}:{line} ({function})" for line, function in last]


def without_traces(output: str) -> str:
    """A gang's output, the number of the rank in front of each line, without traces and the line breaks before them."""
    kept: list[str] = []
    for line in output.splitlines(keepends=True):
        rank, _, text = line.partition(": ")
        if not _TRACE.match(text.rstrip("\n")):
            kept.append(line)
            continue
        own = next((i for i in reversed(range(len(kept))) if kept[i].startswith(f"{rank}: ")), None)
        if own is not None and kept[own].strip() == f"{rank}:":
            del kept[own]
    return "".join(kept)
