"""The fixed split into problems to train on and problems to report on, and the groups of near-duplicates."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

SPLITS = Path(__file__).parent / "splits.json"
"""Names of both splits, the groups of near-duplicates that keep together, and the rule."""


@cache
def near_duplicates(problem: str) -> frozenset[str]:
    """The problem itself and those that a kernel for it solves by relabelling, as `problems/splits.json` lists them."""
    groups = json.loads(SPLITS.read_text(encoding="utf-8"))["groups"]
    together = [group["problems"] for group in groups if problem in group["problems"]]
    return frozenset({problem}.union(*together))
