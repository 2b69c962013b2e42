"""Kernels that break the call contract are refused, each time, with a sentence that says how.

`make test` evaluates every second one, `make all` each.
"""

import os
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.joined_libraries import compile_together
from tests.whole_tables import sampled

RACES = {
    "early_read.cpp": "early_read",
    "late_read.cpp": "late_read",
    "early_write.cpp": "early_write",
    "late_output.cpp": "late_output",
    "reused_scratch.cpp": "reuse",
    "stale_flag.cpp": "missing_wait",
}


RACY = sampled(candidates("racy"), 3)
EVALUATIONS = 3
"""Each is refused. That one ends as a plain mismatch is right where the calls that look for its cause all went well."""


def judged(candidate: Candidate, evaluator: LocalEvaluator) -> Feedback:
    """The first evaluation with a cause."""
    for seed in range(EVALUATIONS):
        config = candidate.config.model_copy(update={"seed": seed})
        feedback = evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)
        assert not feedback.passed
        if feedback.failure is not Failure.OUTPUT_MISMATCH or "output_mismatch" in candidate.outcome:
            break
    return feedback


pytestmark = pytest.mark.usefixtures("all_interrupted_calls")


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    native = [candidate for candidate in RACY if candidate.path.suffix == ".cpp"]
    compile_together([candidate.source for candidate in native], CompileCache.in_folder(compiled_before))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("candidate", RACY, ids=lambda candidate: candidate.name)
def test_a_broken_contract_is_refused(candidate: Candidate, local_evaluator: LocalEvaluator) -> None:
    feedback = judged(candidate, local_evaluator)
    candidate.assert_as_expected(feedback)
    assert (feedback.race is not None) == (feedback.failure is Failure.RACE)
    if candidate.path.name in RACES:
        assert feedback.race is not None and feedback.race.kind == RACES[candidate.path.name]
        assert feedback.race.evidence in feedback.message
        assert feedback.check is not None, "what was compared is lost"


THREADED = """
import os
import threading
import torch

def solution(x):
    def sum_of_one_rank():
        assert len(os.sched_getaffinity(0)) == PROCESSORS, os.sched_getaffinity(0)
        out.copy_(x)
    out = torch.empty_like(x)
    thread = threading.Thread(target=sum_of_one_rank)
    thread.start()
    thread.join()
    return out
"""


def test_threads_of_a_call_may_use_all_processors_of_their_rank(local_evaluator: LocalEvaluator) -> None:
    """A rank is held on one processor while it is woken for its call."""
    source = THREADED.replace("PROCESSORS", str(len(os.sched_getaffinity(0))))
    config = EvalConfig(device="cpu", world_size=1, size="tiny", until="time", timing_budget_s=0.2)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.timing is not None, feedback.message
