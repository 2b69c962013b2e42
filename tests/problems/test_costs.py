"""Costs of single ranks, first worked out from each problem's specification: `costs.jsonl`, one rank a line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pkb_gym.engine.problem import Cost
from tests.problems.support import find_problem
from tests.whole_tables import sampled

ROWS = [json.loads(line) for line in Path(__file__).with_name("costs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", sampled(sorted({row["problem"] for row in ROWS}), 3))
def test_cost_of_a_rank(name: str) -> None:
    """Quantities that a line does not name are 0."""
    problem = find_problem(name)
    for row in ROWS:
        if row["problem"] == name:
            found = problem.cost(problem.axes(size=row["size"], world_size=row["world_size"], rank=row["rank"]))
            expected = Cost(**row["cost"])
            assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(expected), rel=1e-9), row
