"""Expert kernels for GPUs: all compile, which takes no GPU. tests/gpu runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import cuda_errors

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_compiles(problem: Problem, tmp_path: Path) -> None:
    source = Path(problem.declared_in).with_name("expert.cu")
    assert cuda_errors(source, tmp_path) == ""


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_states_its_transfers(problem: Problem) -> None:
    opening = (expert_source(problem, "cu") or "").split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"
