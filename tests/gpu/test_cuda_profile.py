"""The profile on GPUs: CUPTI records in the ranks, and its records agree with the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Profile
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER

PROBLEM = find_problem("AllReduce")
REFERENCE = Path(PROBLEM.declared_in).with_name("reference.py")
GOOD = FOLDER / "cuda" / "good"

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def need(world_size: int) -> None:
    """Skips the test where there are fewer GPUs."""
    if len(gpus.names()) < world_size:
        pytest.skip(f"needs {world_size} NVIDIA GPU{'s' if world_size > 1 else ''}")


def evaluate(evaluator: LocalEvaluator, path: Path, world_size: int, **options: object) -> Feedback:
    need(world_size)
    config = EvalConfig(
        device="cuda", size="published", world_size=world_size, timing_budget_s=0.5, timeout_s=20.0, **options
    )
    feedback = evaluator.evaluate(PROBLEM, path.read_text(encoding="utf-8"), config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.output}"
    return feedback


def profile_of(feedback: Feedback) -> Profile:
    profile = feedback.profile
    assert profile is not None, f"CUPTI recorded nothing in the ranks; they wrote:\n{feedback.output}"
    for rank in profile.ranks:
        assert rank.busy_us is not None and 0 < rank.busy_us <= rank.wall_us
        parts = rank.compute_us + rank.communication_us + rank.waiting_us + rank.host_us
        assert parts == pytest.approx(rank.wall_us, rel=1e-3)
    assert sum(kernel.share for kernel in profile.kernels) <= 1 + 1e-9
    return profile


def link_out_bytes() -> float:
    axes = PROBLEM.axes(size="published", world_size=2, rank=0, dtype=PROBLEM.dtypes[0], protocol="robust")
    return PROBLEM.cost(axes).link_out_bytes


def test_one_rank_has_kernels_and_moves_nothing(local_evaluator):
    profile = profile_of(evaluate(local_evaluator, GOOD / "reads_peers.cu", 1))
    calls = profile.ranks[0].calls
    assert profile.kernels[0].launches % calls == 0 and "(" in profile.kernels[0].name
    assert profile.ranks[0].compute_us > 0 and profile.mechanisms == () == profile.trace


def test_copy_engines_are_distinguished_from_kernels(local_evaluator):
    profile = profile_of(evaluate(local_evaluator, GOOD / "copy_engines.cu", 2))
    assert profile.mechanisms[0] == "copy engine"
    for rank in profile.ranks:
        assert rank.copied_bytes == pytest.approx(link_out_bytes(), rel=0.01)
        assert rank.communication_us + rank.overlap_us > 0
        assert rank.waiting_us > 0, "the barriers of the streams are kernels that only wait"
    assert any(kernel.name.startswith("Memcpy PtoP") for kernel in profile.kernels)


def test_pushes_by_kernels_are_loads_and_stores(local_evaluator):
    profile = profile_of(evaluate(local_evaluator, GOOD / "pushes_with_signals.cu", 2))
    assert "SM load/store" in profile.mechanisms and "copy engine" not in profile.mechanisms
    assert all(rank.waits is not None for rank in profile.ranks)
    waited = [rank.mean_wait_us for rank in profile.ranks if rank.mean_wait_us is not None]
    assert waited and all(0 < wait < 1e5 for wait in waited)


def test_the_baseline_is_seen_as_nccl(local_evaluator):
    profile = profile_of(evaluate(local_evaluator, REFERENCE, 2))
    assert "NCCL" in profile.mechanisms
    assert any("ncclDevKernel" in kernel.name for kernel in profile.kernels)
    assert all(rank.communication_us > 0 and rank.waits is None for rank in profile.ranks)


def test_link_counters_see_what_crosses(local_evaluator):
    profile = profile_of(evaluate(local_evaluator, GOOD / "copy_engines.cu", 2))
    if any(rank.sent_bytes is None for rank in profile.ranks):
        pytest.skip("the driver has no NVLink counters here")
    for rank in profile.ranks:
        assert rank.sent_bytes == pytest.approx(link_out_bytes(), rel=0.25)
        assert rank.received_bytes == pytest.approx(link_out_bytes(), rel=0.25)


def test_timelines_of_the_ranks_lie_side_by_side(local_evaluator):
    feedback = evaluate(local_evaluator, GOOD / "copy_engines.cu", 2, trace=True)
    profile = profile_of(feedback)
    kinds = {(event.rank, event.kind) for event in profile.trace}
    assert kinds >= {(rank, kind) for rank in (0, 1) for kind in ("call", "kernel", "copy")}
    spans = []
    for rank in (0, 1):
        mine = [event for event in profile.trace if event.rank == rank and event.kind != "call"]
        calls = [event for event in profile.trace if event.rank == rank and event.kind == "call"]
        begin, end = min(e.start_us for e in mine), max(e.start_us + e.duration_us for e in mine)
        assert begin >= calls[0].start_us - 50, "nothing runs before it was launched, but for the clocks' error"
        assert len(calls) == profile.ranks[rank].calls
        spans.append((begin, end))
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)
    assert Feedback.model_validate_json(feedback.model_dump_json()) == feedback
