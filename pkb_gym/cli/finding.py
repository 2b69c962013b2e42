"""One thing that `pkb doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked for.
        state: "missing" what every evaluation needs, "limited" what some need, "ok" otherwise.
        detail: version, place, or what does not work without it.
        remedy: what to do, empty where all is well.
    """

    name: str
    state: Literal["ok", "limited", "missing"]
    detail: str
    remedy: str = ""
