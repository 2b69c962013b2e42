"""Files of tests/candidates/cuda/hostile on GPUs: the named failure of each, and the next evaluation is none the worse.

Where there are fewer GPUs than ranks, they share them in the evaluations that time nothing; the others are skipped.
Each kind of attack is tried once; other files of the kind are slow.
"""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from tests.engine.candidates import Candidate, candidates
from tests.gpu.sharing import GOOD, assert_as_expected, compile_selected, evaluate, need

ALL = candidates("cuda/hostile")
QUICK = {
    *("finishes_in_a_thread", "late_host_function", "late_peer_copy", "late_delivery", "late_from_its_first_kernel"),
    *("leaves_a_server_running", "skips_its_handovers", "asks_from_within_its_kernel"),
    *("second_context", "triton_leaves_a_process", "hogs_memory_from_a_second_context"),
    *("memoises_by_pointer", "replays_its_first_graph", "keeps_an_ipc_pointer", "approximates_once_timed"),
    *("reads_what_others_freed", "imports_open_descriptors", "hides_its_fault", "hoards_device_memory"),
    *("scribbles_over_the_heap", "unmaps_the_heap", "resets_the_device"),
    *("opens_nccl", "sums_on_the_host", "saves_its_delivery"),
}
"""Names of the files that are not slow."""


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """The sources, compiled side by side ahead of the tests, which find them in the cache."""
    compile_selected(local_evaluator, request)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "candidate",
    [pytest.param(each, marks=() if each.path.stem in QUICK else pytest.mark.slow) for each in ALL],
    ids=[each.path.name for each in ALL],
)
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need(candidate)
    assert_as_expected(candidate, evaluate(local_evaluator, candidate))
    until: str = GOOD.config.until if len(gpus.names()) >= GOOD.world_size else "check"
    after = dataclasses.replace(GOOD, options=GOOD.options | {"until": until})
    after.assert_as_expected(evaluate(local_evaluator, after))
