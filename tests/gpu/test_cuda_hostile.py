"""Files of tests/candidates/cuda/hostile on GPUs: the named failure of each, and the next evaluation is none the worse.

Where there are fewer GPUs than ranks, they share them in the evaluations that time nothing; the others are skipped.
"""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from tests.engine.candidates import Candidate, candidates
from tests.gpu.sharing import GOOD, assert_as_expected, compile_selected, evaluate, need


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    compile_selected(local_evaluator, request)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "candidate", candidates("cuda/hostile"), ids=lambda candidate: candidate.name.rpartition("/")[2]
)
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    assert_as_expected(candidate, evaluate(local_evaluator, candidate))
    until: str = GOOD.config.until if len(gpus.names()) >= GOOD.world_size else "check"
    after = dataclasses.replace(GOOD, options=GOOD.options | {"until": until})
    after.assert_as_expected(evaluate(local_evaluator, after))
