"""The prompts of a learning run: those that GRPO learns on, and those of the rings that policies are judged on."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.inputs.rows import Row, read_jsonl

RINGS, PRACTICE = "rings.jsonl", "practice.jsonl"
"""Prompts on which policies are judged, and on which GRPO learns."""
PER_PROBLEM = {"sizes": 6, "left_out": 6, "test": 1}
"""Prompts of each problem that a ring is judged on."""


def first_of_each(rows: Sequence[Row], ring: str | None, per_problem: int) -> list[Row]:
    """The first prompts of each problem, of one ring or of all."""
    taken: Counter[str] = Counter()
    kept = []
    for row in rows:
        if ring in (None, row.get("ring")):
            taken[row["problem"]] += 1
            if taken[row["problem"]] <= per_problem:
                kept.append(row)
    return kept


def write_rings(prompts: Path, output: Path) -> None:
    """The first prompts of each problem in each ring, see `PER_PROBLEM`; the rings follow each other in its order."""
    rows = read_jsonl(prompts)
    kept = [row for ring, most in PER_PROBLEM.items() for row in first_of_each(rows, ring, most)]
    write_atomically(output, "".join(json.dumps(row) + "\n" for row in kept))


def write_practice(prompts: Path, output: Path, seed: int) -> None:
    """The prompts of the training, in turn of their problems; `seed` of the order within a problem."""
    rows = [row for row in read_jsonl(prompts) if row.get("ring") is None]
    write_atomically(output, "".join(json.dumps(row) + "\n" for row in in_turn_of_problems(rows, seed)))


def in_turn_of_problems(rows: Sequence[Row], seed: int) -> list[Row]:
    """The rows, a problem after the other, so that as many rows in a row as there are problems have one of each.

    A step that learns from some problems alone undoes what the others need. Where a problem has fewer rows than
    others, it is missing in the last rounds.

    Args:
        rows: Prompts, each with a problem.
        seed: Seed of the order of each problem's rows.

    Example:
        >>> rows = [{"problem": name} for name in ("Reduce", "Reduce", "Gather", "Gather")]
        >>> [row["problem"] for row in in_turn_of_problems(rows, seed=0)]
        ['Reduce', 'Gather', 'Reduce', 'Gather']
    """
    of_problem: dict[str, list[Row]] = {}
    for row in rows:
        of_problem.setdefault(row["problem"], []).append(row)
    for name, found in of_problem.items():
        random.Random(f"{seed} {name}").shuffle(found)
    rounds = range(max(map(len, of_problem.values()), default=0))
    return [found[at] for at in rounds for found in of_problem.values() if at < len(found)]
