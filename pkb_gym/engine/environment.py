"""The environment variables that pkb-gym knows: the one module that reads them.

- PKB_CACHE_DIR: folder of everything that may be made again (default: ~/.cache/pkb-gym).
- TORCH_SYMM_MEM_DISABLE_MULTICAST=1: torch's own; NVLink multicast is switched off on this machine.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder of the caches; it may not exist yet."""
    named = os.environ.get("PKB_CACHE_DIR", "")
    return Path(named).expanduser() if named else Path("~/.cache/pkb-gym").expanduser()


def multicast_disabled() -> bool:
    """Whether torch is told not to use NVLink multicast."""
    return os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") not in ("", "0")


FOR_CANDIDATES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
"""What processes that may run or compile candidate code see of the environment: no tokens, no keys."""


def for_candidates(**changes: str) -> dict[str, str]:
    """The environment of such a process, with some variables set."""
    return {name: os.environ[name] for name in FOR_CANDIDATES if name in os.environ} | changes


def with_changes(**changes: str) -> dict[str, str]:
    """This process's environment with some variables set, for a child."""
    return {**os.environ, **changes}
