"""Expert kernels of the CPU device: right under robust rules at tiny on 1 and 4 ranks, and at a larger size on 2.

`make test` runs a sample of them, `make all` every one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import FLAGS
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import compile_ahead, cpp_errors
from tests.engine.joined_libraries import can_join, compile_together
from tests.whole_tables import sampled

EXPERTS = [problem for problem in catalogue() if expert_source(problem) is not None]
RUN = sampled(EXPERTS, 12)

LARGER = {name: {"M": 520, "K": 264, "N": 512} for name in ("AllGatherGemm", "GemmAllReduce")}
"""In place of `published`, whose references take a second a call here; no multiple of a tile."""


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, compiled_before: Path) -> None:
    """All that run; the tests find them in the cache."""
    sources = {problem: expert_source(problem) or "" for problem in RUN}
    compile_together(sources.values(), CompileCache.in_folder(compiled_before), FLAGS)
    config = EvalConfig(device="cpu", size="tiny")
    alone = [(problem, source, config) for problem, source in sources.items() if not can_join(source)]
    compile_ahead(local_evaluator, alone)


@pytest.mark.parametrize("problem", RUN, ids=lambda problem: problem.name)
def test_expert_is_right(problem, local_evaluator: LocalEvaluator):
    source = expert_source(problem)
    assert source is not None
    larger = LARGER.get(problem.name, "published")
    for size, world_size, trials in (("tiny", 1, 4), ("tiny", 4, 4), (larger, 2, 1)):
        config = EvalConfig(
            device="cpu", world_size=world_size, size=size, until="check", trials=trials, seed=world_size, timeout_s=30
        )
        feedback = local_evaluator.evaluate(problem, source, config)
        assert feedback.passed, f"{size} on {world_size}: {feedback.failure}\n{feedback.message}"


@pytest.mark.parametrize(
    "problem",
    [problem for problem in RUN if can_join(expert_source(problem) or "")],
    ids=lambda problem: problem.name,
)
def test_expert_compiles_by_itself(problem):
    assert cpp_errors(expert_source(problem) or "") == ""


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_states_its_transfers(problem):
    source = expert_source(problem)
    assert source is not None
    opening = source.split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"
