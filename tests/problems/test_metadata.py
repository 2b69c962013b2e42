"""What every problem says about itself: where it comes from, how its ranks communicate, what it is given."""

from __future__ import annotations

import re

import pytest

from pkb_gym.engine.problem import PATTERNS
from pkb_gym.problems.catalogue import catalogue, find_problem


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_metadata_is_complete(problem):
    assert problem.origin.strip(), "name the code base or model that it comes from"
    assert problem.patterns, f"one of its tags must be a communication pattern: {', '.join(PATTERNS)}"
    assert len(set(problem.tags)) == len(problem.tags)
    assert all(re.fullmatch(r"[a-z0-9_]+", tag) for tag in problem.tags), problem.tags
    assert problem.summary.endswith("."), problem.summary
    assert all(weakness.endswith(".") for weakness in problem.weaknesses)


def test_argument_kinds_follow_from_the_arguments():
    assert find_problem("AllGatherGemm").argument_kinds == ("tensor",)
    assert find_problem("HyenaCP").argument_kinds == ("tensor", "int", "group", "bool")
    assert find_problem("ClipGradNorm").argument_kinds[0] == "tensor_list"
    assert "linear" in find_problem("FusedMoELoRA").argument_kinds
