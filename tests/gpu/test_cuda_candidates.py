"""Right, broken and racy files of tests/candidates/cuda on GPUs: the named failure of each, in time.

Where there are fewer GPUs than ranks, they share them in the evaluations that time nothing; the others are skipped.
"""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from tests.engine.candidates import Candidate, candidates
from tests.gpu.sharing import assert_as_expected, compile_selected, evaluate, need

ALL = [candidate for kind in ("good", "broken", "racy") for candidate in candidates(f"cuda/{kind}")]


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    compile_selected(local_evaluator, request)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("candidate", ALL, ids=lambda candidate: candidate.name.removeprefix("cuda/"))
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    assert_as_expected(candidate, evaluate(local_evaluator, candidate))
