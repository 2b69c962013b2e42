"""Generated wrong solutions: what is generated, what is refused, and that each that passes has its reason."""

from __future__ import annotations

import os

import pytest
import torch

from pkb_gym.authoring import wrong_inputs
from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.problems.legitimate_passes import PASSES
from tests.problems.wrong_solutions import Row, study, unexplained


def test_every_collective_of_tp_muon_counts() -> None:
    """Without its 7th or 8th all-reduce it passed: shards of the longest table's iteration were orthogonal already."""
    rows = study(find_problem("TPMuon"), world_size=4)
    names = {row.wrong for row in rows}
    assert {f"collective {number}: own data for the others'" for number in range(1, 10)} <= names
    assert {"no communication", "means for sums", "first rank's data alone"} <= names
    assert [row.wrong for row in rows if row.refused_in is None] == []


def test_a_collective_that_adds_zeros_can_be_left_out() -> None:
    rows = study(find_problem("CombinedShardedGemms"), world_size=2)
    assert {row.wrong for row in rows if row.refused_in is None} == {
        "collective 2: own data for the others'",
        "collective 2: zeros for the others'",
    }
    assert unexplained(rows) == []


@pytest.mark.skipif(not os.environ.get("PKB_TEST_MUTANTS"), reason="takes minutes: run it by `make mutants`")
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_every_wrong_solution_is_refused_or_has_its_reason(problem: Problem, world_size: int) -> None:
    assert unexplained(study(problem, world_size)) == []


def test_a_pass_without_a_reason_and_a_reason_without_a_pass_are_named() -> None:
    refused = Row("AllReduce", 2, "no communication", 0, fell_over=False)
    passing = Row("AllReduce", 2, "no communication", None, fell_over=False)
    assert unexplained([refused]) == []
    assert unexplained([passing]) == ["AllReduce, 2 ranks: passes: no communication"]
    gone = [Row("CombinedShardedGemms", 2, "collective 2: zeros for the others'", 0, fell_over=False)]
    assert unexplained(gone) == ["CombinedShardedGemms, 2 ranks: does not pass: collective 2"]


def test_changes_of_inputs() -> None:
    rows = torch.tensor([[1.0, 0.001, -1.0], [0.001, 0.0, 0.0]])
    assert wrong_inputs.int8_rows(rows).flatten().tolist() == pytest.approx([1, 0, -1, 0.001, 0, 0])
    assert wrong_inputs.first_half_twice(torch.arange(5.0)).tolist() == [0, 1, 2, 0, 1]
    assert wrong_inputs.mean_for_half(torch.tensor([1.0, 2.0, 6.0])).tolist() == [1, 3, 6]
    assert wrong_inputs.float8(torch.tensor([448.0, 17.0])).tolist() == [448, 16]
    whole = torch.tensor([1, 2])
    assert wrong_inputs.changed_tensor(whole, wrong_inputs.zeros) is whole
    mutable = [rows.clone(), None]
    assert wrong_inputs.changed_value(mutable, wrong_inputs.zeros, mutable=True) is mutable and not mutable[0].any()


def test_reasons_name_problems() -> None:
    names = {problem.name for problem in catalogue()}
    for entry in PASSES:
        assert set(entry.problems) <= names and entry.reason and set(entry.world_sizes) <= {2, 4}, entry
