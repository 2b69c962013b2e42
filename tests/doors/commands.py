"""Programs that are run for the doors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def environment(**changes: str) -> dict[str, str]:
    """That of this process, from which the repository is imported, with changes."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run(command: list[str], limit_s: float, *, echo: bool = False, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command, from the root of the repository; ended after `limit_s`, with status 124.

    Args:
        command: and its arguments.
        limit_s: deadline in seconds.
        echo: whether it prints, or its output is that of the result.
        **changes: of the environment.
    """
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment(**changes),
            stdout=None if echo else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"{' '.join(command)} took more than {limit_s:g} s", "")
