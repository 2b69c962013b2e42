"""Problem by problem: which a policy solves on the ring of trained problems, and how that went in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import prompt_key, summarise

PARTS = 4
"""Parts of equal length into which the steps of a training are divided."""


def ring_by_problem(rows: Sequence[Row], rings: Mapping[str, str], ring: str) -> dict[str, dict[str, Any]]:
    """Problem -> episodes on the ring, share right and mean reward."""
    of_ring = [row for row in rows if rings.get(prompt_key(row)) == ring]
    return {
        problem: {
            "episodes": figures.samples,
            "correct": None if figures.correct is None else figures.correct.mean,
            "reward": None if figures.reward is None else figures.reward.mean,
        }
        for problem, figures in summarise(of_ring).problems.items()
    }


def training_by_problem(rollouts: Sequence[Row], parts: int = PARTS) -> dict[str, list[float | None]]:
    """Problem -> share right of the first submissions in each part of the steps; None where it was not drawn."""
    steps = 1 + max((row["step"] for row in rollouts), default=-1)
    found: dict[str, list[list[float]]] = {}
    for row in rollouts:
        if row["turn"] == 0:
            of_parts = found.setdefault(row["problem"], [[] for _ in range(parts)])
            of_parts[row["step"] * parts // steps].append(float(row["is_right"]))
    return {problem: [fmean(of) if of else None for of in of_parts] for problem, of_parts in sorted(found.items())}
