"""Evaluations on GPUs beside and after others: ranks that share a GPU, and figures that nothing else changes."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.timing import Timing
from pkb_gym.problems.catalogue import expert_source, find_problem
from tests.engine.candidates import FOLDER, Candidate, candidates, read
from tests.gpu.sharing import GOOD, evaluate, need, need_gpus

DOES_NOTHING = """
#include "pkb/symm.h"
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
IN_A_ROW, HONEST = 100, 20
SAME_RELATIVE = 0.1
"""Two evaluations of one kernel differ by less than this, whatever was evaluated between them."""


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("outcome", ["right", "wrong"])
def test_ranks_share_one_gpu(local_evaluator: LocalEvaluator, world_size: int, outcome: str) -> None:
    """Those of both dialects; what is wrong is found as it is on GPUs of their own."""
    need_gpus(1)
    problem = find_problem(GOOD.problem)
    python = (Path(problem.declared_in).parent / "reference.py").read_text(encoding="utf-8")
    sources = {"right": (GOOD.source, python), "wrong": (DOES_NOTHING, python.replace("return", "return 2 *"))}
    config = GOOD.config.model_copy(update={"world_size": world_size, "ranks_per_gpu": world_size, "until": "profile"})
    for source in sources[outcome]:
        feedback = local_evaluator.evaluate(problem, source, config)
        assert (feedback.config.until, feedback.timing) == ("check", None)
        expected = None if outcome == "right" else Failure.OUTPUT_MISMATCH
        assert feedback.failure is expected, f"{feedback.message}\n{feedback.output}"


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_native_code_that_opens_nccl_is_seen(local_evaluator: LocalEvaluator) -> None:
    candidate = read(FOLDER / "cuda" / "hostile" / "opens_nccl.cu")
    need(candidate)
    feedback = evaluate(local_evaluator, candidate)
    assert feedback.passed, feedback.message
    assert feedback.calls_torch_distributed is True


@pytest.fixture(scope="module")
def undisturbed(local_evaluator: LocalEvaluator) -> Timing:
    """Of the good kernel."""
    need(GOOD)
    return figures(local_evaluator, GOOD)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["pins_the_l2", "leaves_host_threads_spinning", "leaves_a_thread_launching"])
def test_the_baseline_is_no_slower_beside_it(local_evaluator: LocalEvaluator, undisturbed: Timing, name: str) -> None:
    beside = figures(local_evaluator, read(FOLDER / "cuda" / "hostile" / f"{name}.cu"))
    assert beside.baseline_us < undisturbed.baseline_us * (1 + SAME_RELATIVE)


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_hurried_handovers_are_not_paid(local_evaluator: LocalEvaluator) -> None:
    """Rewards pay the interval's lower end, which is over a baseline without the copy of results."""
    candidate = read(FOLDER / "cuda" / "hostile" / "hurries_its_handovers.py")
    need(candidate)
    hurried = evaluate(local_evaluator, candidate)
    candidate.assert_as_expected(hurried)
    assert hurried.timing is not None and hurried.timing.speedup_low < 1 + SAME_RELATIVE


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_request_after_the_outputs_saves_less_than_a_handover(local_evaluator: LocalEvaluator) -> None:
    """The most that a call gains by it, as docs/security.md says; one before them is found."""
    asking = read(FOLDER / "cuda" / "hostile" / "asks_at_its_end.cu")
    need(asking)
    honest = dataclasses.replace(asking, source=asking.source.replace("++calls > kHonestCalls", "false"))
    assert honest.source != asking.source
    timings = [evaluate(local_evaluator, each).timing for each in (asking, honest)]
    assert timings[0] is not None and timings[1] is not None
    saved_us = timings[1].candidate_us - timings[0].candidate_us
    assert saved_us < timings[1].candidate_handover_us + SAME_RELATIVE * timings[1].candidate_us


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_an_honest_expert_has_no_finding_in_twenty_evaluations(local_evaluator: LocalEvaluator) -> None:
    """Its outputs are sampled at its requests all the while."""
    need_gpus(1)
    problem = find_problem("AllReduce")
    source = expert_source(problem, "cu")
    assert source is not None
    config = EvalConfig(device="cuda", world_size=1, size="published", until="time", timing_budget_s=0.5)
    for _ in range(HONEST):
        feedback = local_evaluator.evaluate(problem, source, config)
        assert feedback.passed and not feedback.integrity, f"{feedback.message}\n{feedback.integrity}"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_in_a_row_change_no_figures(local_evaluator: LocalEvaluator) -> None:
    need(GOOD)
    before = figures(local_evaluator, GOOD)
    bad = [
        candidate
        for candidate in (*candidates("cuda/hostile"), *candidates("cuda/broken"))
        if candidate.path.suffix == ".cu" and candidate.outcome != "compile_error"
    ]
    for candidate in itertools.islice(itertools.cycle(bad), IN_A_ROW):
        feedback = evaluate(local_evaluator, candidate)
        assert feedback.failure is not Failure.INFRASTRUCTURE, f"{candidate.name}: {feedback.message}"
    after = figures(local_evaluator, GOOD)
    assert after.baseline_us == pytest.approx(before.baseline_us, rel=SAME_RELATIVE)
    assert after.candidate_us == pytest.approx(before.candidate_us, rel=SAME_RELATIVE)


def figures(evaluator: LocalEvaluator, candidate: Candidate) -> Timing:
    """Times of a kernel that passes; at size large, as those of smaller baselines follow the hosts' launches."""
    config = candidate.config.model_copy(update={"size": "large", "timing_budget_s": 3.0, "until": "time"})
    feedback = evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)
    candidate.assert_as_expected(feedback)
    assert feedback.timing is not None
    return feedback.timing
