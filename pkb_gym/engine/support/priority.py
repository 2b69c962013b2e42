"""Low priority for processes that work beside what is measured: they get processors that nobody else wants."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

NICENESS = "10"
"""Such a process gets a tenth of a processor that one other wants, too. At 19, a sixtieth, to import torch takes
minutes where all processors are busy."""


def at_low_priority(command: Sequence[str]) -> list[str]:
    """The command that runs a command, with all that it starts, at low priority; the same where there is no nice(1)."""
    nice = shutil.which("nice")
    return [*command] if nice is None else [nice, "-n", NICENESS, *command]


def lower_session(leader: int) -> None:
    """Lowers a session where the kernel divides processors among sessions first (sched(7), autogroup).

    Args:
        leader: Process that leads the session.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{leader}/autogroup").write_text(NICENESS)
