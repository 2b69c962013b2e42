"""Expert kernels for GPUs: all compile, which takes no GPU. tests/gpu runs them."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_compiles(problem: Problem, local_evaluator: LocalEvaluator) -> None:
    config = EvalConfig(device="cuda", world_size=2, size="tiny", until="compile", compile_timeout_s=800)
    feedback = local_evaluator.evaluate(problem, expert_source(problem, "cu") or "", config)
    assert feedback.failure is None, f"{feedback.failure}: {feedback.message}"


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_says_what_moves(problem: Problem) -> None:
    opening = (expert_source(problem, "cu") or "").split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"
