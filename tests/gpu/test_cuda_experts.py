"""Every expert kernel for GPUs, on the GPUs there are: right, and without a finding, until it has been timed.

Where there are fewer GPUs than ranks, they share them, and nothing is timed. Experts that bring a header of `pkb/`
which none before them in the catalogue includes are run at size published on two ranks, some of them at size tiny on
one, four or eight; the other cases are slow.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import pkb_gym.engine
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import compile_ahead
from tests.gpu.sharing import ranks_on_gpus, selected

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]
WORLD_SIZES = (1, 2, 4, 8)
HEADERS = Path(pkb_gym.engine.__file__).parent / "include" / "pkb"


def headers_of(source: str) -> set[str]:
    """Names of the headers of `pkb/` that a source includes, those that they include among them."""
    found: set[str] = set()
    left = [source]
    while left:
        new = set(re.findall(r'^#include "pkb/(\w+\.h)"', left.pop(), re.MULTILINE)) - found
        found |= new
        left += [(HEADERS / name).read_text(encoding="utf-8") for name in new]
    return found


def first_with_a_header() -> list[str]:
    """Names of the experts that bring a header which none before them includes."""
    known: set[str] = set()
    names = []
    for problem in EXPERTS:
        headers = headers_of(expert_source(problem, "cu") or "")
        if headers - known:
            names.append(problem.name)
        known |= headers
    return names


FIRST = first_with_a_header()
TURNS = dict(zip(FIRST[::8], itertools.cycle((4, 1, 8)), strict=False))
"""Name -> the world size at which size tiny is not slow."""
CASES = list(itertools.product(EXPERTS, WORLD_SIZES, ("tiny", "published")))


def is_slow(problem: Problem, world_size: int, size: str) -> bool:
    """Whether a case is left to runs of all tests."""
    if world_size == 2:
        return size != "published" or problem.name not in FIRST
    return size != "tiny" or TURNS.get(problem.name) != world_size


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
