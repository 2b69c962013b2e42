"""The commit that results are measured at."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMMIT_DIGITS = 12


def checkout_commit() -> str | None:
    """The commit of this package's checkout, with "-dirty" where files differ from it; None where it lies in none.

    An environment inside of a checkout of something else has no commit of this package.
    """
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--dirty", "--exclude=*", f"--abbrev={COMMIT_DIGITS}")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
