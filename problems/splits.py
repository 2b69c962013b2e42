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


def cluster_of(problem: str) -> str:
    """The name of the cluster that a problem's results belong to: the first of its near-duplicates by name.

    A policy that solves one of them solves the others by relabelling, so that their results are no independent
    evidence. A problem that the split does not list is alone.

    Example:
        >>> cluster_of("UlyssesAllGather"), cluster_of("AllGather"), cluster_of("MyProblem")
        ('AllGather', 'AllGather', 'MyProblem')
    """
    return min(near_duplicates(problem))
