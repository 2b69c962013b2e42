"""Starters in CUDA C++, Triton and Python on the GPUs there are, which ranks may share: right at tiny.

The emulator and tests on the CPU judge them too: some of each language, on each number of ranks, are not slow.
"""

from __future__ import annotations

import itertools

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.records.config import EvalConfig, Language
from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.starters import make_starter
from tests.engine.compiling import compile_ahead
from tests.gpu.sharing import ranks_on_gpus, selected

STARTERS = [
    (problem.name, language)
    for language in ("cuda", "triton", "python")
    for problem in catalogue()
    if not make_starter(problem, language, "cuda").why_python
]
WORLD_SIZES = (2, 4, 8)
PICKED = {"cuda": slice(0, None, 10), "triton": slice(None), "python": slice(3, None, 15)}
"""Language -> the starters that are run on one number of ranks each; those in Python have one with a Triton kernel."""
QUICK = {
    starter: world_size
    for language, picked in PICKED.items()
    for starter, world_size in zip(
        [starter for starter in STARTERS if starter[1] == language][picked], itertools.cycle(WORLD_SIZES), strict=False
    )
}
"""(problem, language) -> the number of ranks at which it is not slow."""
# Cases of as many ranks stand side by side, for which the reference's ranks are started once.
CASES = [
    pytest.param(*starter, world_size, marks=() if world_size == QUICK.get(starter) else pytest.mark.slow)
    for language in PICKED
    for world_size in WORLD_SIZES
    for starter in STARTERS
    if starter[1] == language
]


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The native ones, side by side; the tests find them in the cache."""
    if gpus.names():
        config = EvalConfig(device="cuda", size="tiny", race_check="off")
        names = dict.fromkeys(test["name"] for test in selected(request) if test["language"] == "cuda")
        problems = [find_problem(name) for name in names]
        work = [(problem, make_starter(problem, "cuda").source, config) for problem in problems]
        compile_ahead(local_evaluator, work, threads=host.processors())


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "language", "world_size"), CASES)
def test_starter_is_right(name: str, language: Language, world_size: int, local_evaluator: LocalEvaluator) -> None:
    ranks = ranks_on_gpus(world_size)
    problem = find_problem(name)
    config = EvalConfig(device="cuda", **ranks, size="tiny", until="check", race_check="off")
    feedback = local_evaluator.evaluate(problem, make_starter(problem, language, "cuda").source, config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.output}"
