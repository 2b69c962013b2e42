"""Every expert kernel for GPUs, on the GPUs there are: right, and without a finding, until it has been timed.

Where there are fewer GPUs than ranks, they share them, and nothing is timed.
"""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import compile_ahead
from tests.gpu.sharing import ranks_on_gpus

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator) -> None:
    """All of them, side by side; the tests find them in the cache."""
    if gpus.names():
        config = EvalConfig(device="cuda", size="tiny", compile_timeout_s=300)
        work = [(problem, expert_source(problem, "cu") or "", config) for problem in EXPERTS]
        compile_ahead(local_evaluator, work, threads=16)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", ["tiny", "published"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_passes(problem: Problem, world_size: int, size: str, local_evaluator: LocalEvaluator) -> None:
    ranks = ranks_on_gpus(world_size)
    if ranks["ranks_per_gpu"] > 1 and size != "tiny":
        pytest.skip(f"needs {world_size} NVIDIA GPUs")
    config = EvalConfig(device="cuda", **ranks, size=size, until="time", timing_budget_s=0.3, compile_timeout_s=300)
    feedback = local_evaluator.evaluate(problem, expert_source(problem, "cu") or "", config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.integrity}\n{feedback.output}"
