"""Every expert kernel for GPUs, on the GPUs there are: right, and without a finding, until it has been timed.

Where there are fewer GPUs than ranks, they share them, and nothing is timed. Each is run at size published on two
ranks, and half of them at size tiny on one, four or eight; the other cases are slow.
"""

from __future__ import annotations

import itertools

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import compile_ahead
from tests.gpu.sharing import ranks_on_gpus, selected

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]
WORLD_SIZES = (1, 2, 4, 8)
TURNS = dict(zip((problem.name for problem in EXPERTS), itertools.cycle((1, 2, 4, 2, 1, 2, 8, 2)), strict=False))
"""Name -> the world size at which size tiny is not slow."""
CASES = list(itertools.product(EXPERTS, WORLD_SIZES, ("tiny", "published")))


def is_slow(problem: Problem, world_size: int, size: str) -> bool:
    """Whether a case is left to runs of all tests."""
    if world_size == 2:
        return size != "published"
    return size != "tiny" or TURNS[problem.name] != world_size


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    if gpus.names():
        config = EvalConfig(device="cuda", size="tiny", compile_timeout_s=300, race_check="off")
        problems = {test["problem"].name: test["problem"] for test in selected(request)}
        work = [(problem, expert_source(problem, "cu") or "", config) for problem in problems.values()]
        compile_ahead(local_evaluator, work, threads=host.processors())


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("problem", "world_size", "size"),
    [pytest.param(*case, marks=pytest.mark.slow if is_slow(*case) else ()) for case in CASES],
    ids=[f"{problem.name}-{world_size}-{size}" for problem, world_size, size in CASES],
)
def test_expert_passes(problem: Problem, world_size: int, size: str, local_evaluator: LocalEvaluator) -> None:
    ranks = ranks_on_gpus(world_size)
    if ranks["ranks_per_gpu"] > 1 and size != "tiny":
        pytest.skip(f"needs {world_size} NVIDIA GPUs")
    config = EvalConfig(
        device="cuda",
        **ranks,
        size=size,
        until="time",
        timing_budget_s=0.3,
        compile_timeout_s=300,
        race_check="off",  # tests of the emulator judge them by its detector
    )
    feedback = local_evaluator.evaluate(problem, expert_source(problem, "cu") or "", config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.integrity}\n{feedback.output}"
