"""Every file of tests/candidates/cuda: its own named failure, in time, and the next evaluation is none the worse.

Where there are fewer GPUs than ranks, they share them in the evaluations that time nothing; the others are skipped.
"""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.compiling import compile_ahead
from tests.gpu.sharing import GOOD, config_here, evaluate, need, selected

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    if gpus.names():
        sources: list[Candidate] = [test["candidate"] for test in selected(request)]
        work = [(find_problem(each.problem), each.source, config_here(each)) for each in sources]
        compile_ahead(local_evaluator, work, threads=host.processors())


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("candidate", ALL, ids=lambda candidate: candidate.name.removeprefix("cuda/"))
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    feedback = evaluate(local_evaluator, candidate)
    if feedback.config.ranks_per_gpu > 1:  # ranks run in turns, so that the same mistake shows in another way
        others = {key: value for key, value in candidate.options.items() if key != "race"}
        candidate = dataclasses.replace(candidate, words=(), options=others)
    candidate.assert_as_expected(feedback)
    if candidate.kind == "hostile":
        until = GOOD.config.until if len(gpus.names()) >= GOOD.world_size else "check"
        after = dataclasses.replace(GOOD, options=GOOD.options | {"until": until})
        after.assert_as_expected(evaluate(local_evaluator, after))
