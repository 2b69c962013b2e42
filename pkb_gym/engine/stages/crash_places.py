"""The traces of ended ranks: the lines of the source where they stood, and uncaught exceptions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.compile.source_lines import SourceLine, source_lines
from pkb_gym.engine.compile.toolchain import EXPORTED
from pkb_gym.engine.gangs.crash_trace import places_in, python_lines_in

MAX_CALLS = 6
"""The most lines of one rank that are reported, innermost first."""

_UNCAUGHT = re.compile(r"terminate called after throwing an instance of '(.{1,200})'\n  what\(\):  (.{1,500})")
"""Text of the C++ library for an uncaught exception."""


def uncaught_exception(outputs: Sequence[str]) -> str:
    """A line for the first rank that an exception of C++ ended; empty where none did.

    Args:
        outputs: Output of each rank, stdout and stderr.
    """
    for rank, output in enumerate(outputs):
        if found := _UNCAUGHT.search(output):
            return f"rank {rank} did not catch {found[1]}: {found[2]}"
    return ""


def note_on(failure: str) -> str:
    """The remedy for an error that does not name it itself; empty where none is known.

    Args:
        failure: Error that a rank reported.
    """
    if "torch._inductor" in failure and "Operation not permitted" in failure:
        return "note: torch.compile starts a compiler, and ranks may start no programs: call operations without it"
    return ""


def crash_places(binary: bytes | None, outputs: Sequence[str]) -> str:
    """A line for each rank that left a stack trace; empty where none did.

    Args:
        binary: Path of the candidate's library; None for a Python source.
        outputs: Output of each rank, stdout and stderr.
    """
    if binary is None:
        found = [", called from ".join(python_lines_in(output)[:MAX_CALLS]) for output in outputs]
    else:
        found = [_stack_text(lines) for lines in source_lines(binary, [places_in(output) for output in outputs])]
    places = list(enumerate(found))
    return "\n".join(f"rank {rank} stood at {place}" for rank, place in places if place)


def _stack_text(lines: Sequence[SourceLine]) -> str:
    """The places as text: `kernel.cpp:11, in pkb::Comm::barrier`; lines of headers where nothing else is known."""
    own = [line for line in lines if line.is_candidates and line.function != EXPORTED]
    if not own:
        return ", called from ".join(map(str, lines[:MAX_CALLS]))
    operation = next((f", in {line.function}" for line in reversed(lines[: lines.index(own[0])])), "")
    numbers = list(dict.fromkeys(f"{line.file}:{line.line}" for line in own))
    innermost, *callers = numbers[:MAX_CALLS]
    return ", called from ".join([innermost + operation, *callers])
