"""Right, broken and racy files of tests/candidates/cuda on GPUs: the named failure of each, in time.

Where there are fewer GPUs than ranks, they share them in the evaluations that time nothing; the others are skipped.
What emulated GPUs show as well is slow, but for some that meet the driver or the ranks' delays.
"""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulated.verdicts import DIFFERENT
from tests.gpu.sharing import assert_as_expected, compile_selected, evaluate, need

ALL = [candidate for kind in ("good", "broken", "racy") for candidate in candidates(f"cuda/{kind}")]
QUICK = {
    *("good/copy_engines.cu", "good/two_streams.cu"),
    *("broken/device_assert.cu", "broken/device_out_of_memory.cu", "broken/endless_recursion.cu"),
    *("broken/exits_early.cu", "broken/illegal_address.cu", "broken/lost_signal.cu", "broken/sticky_error.cu"),
    *("racy/early_read.cu", "racy/early_write.cu", "racy/late_output.cu", "racy/late_read_by_copy_engine.cu"),
    *("racy/reused_scratch.cu", "racy/stale_flag.cu"),
}
"""Those that are not slow although emulated GPUs give their verdict."""


def is_slow(candidate: Candidate) -> bool:
    """Whether a candidate is left to runs of all tests."""
    name = candidate.name.removeprefix("cuda/")
    emulated = candidate.path.suffix == ".cu" and candidate.config.until == "check" and name not in DIFFERENT
    return emulated and name not in QUICK


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    compile_selected(local_evaluator, request)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "candidate",
    [pytest.param(each, marks=pytest.mark.slow if is_slow(each) else ()) for each in ALL],
    ids=[each.name.removeprefix("cuda/") for each in ALL],
)
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    assert_as_expected(candidate, evaluate(local_evaluator, candidate))
