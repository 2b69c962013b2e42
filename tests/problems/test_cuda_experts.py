"""Expert kernels for GPUs as texts. tests/engine/emulated compiles and emulates them (the long ones by `make emulated`
alone), tests/gpu runs them."""

from __future__ import annotations

import pytest

from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, expert_source

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_states_its_transfers(problem: Problem) -> None:
    opening = (expert_source(problem, "cu") or "").split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"
