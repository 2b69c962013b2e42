"""Programs that are run for the doors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def environment(**changes: str) -> dict[str, str]:
    """That of this process, from which the repository is imported, with changes."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run(command: list[str], limit_s: float, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command, from the root of the repository, and what it printed; ended after `limit_s`, with status 124.

    Args:
        command: Command and its arguments.
        limit_s: Deadline in seconds.
        **changes: Changes of the environment.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,  # so that all that it starts ends with it
    )
    late = ""
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        printed, _ = process.communicate()
        late = f"\n{' '.join(command)} took more than {limit_s:g} s"
    finally:
        _end(process)
    return subprocess.CompletedProcess(command, 124 if late else process.returncode, printed + late)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
