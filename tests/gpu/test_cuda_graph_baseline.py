"""The reference as CUDA graphs, where it can be captured, and these on registered memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.timing import Timing
from pkb_gym.problems.catalogue import find_problem

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def baseline_as_candidate(evaluator: LocalEvaluator, name: str, **options: object) -> Timing:
    if len(gpus.names()) < 2:
        pytest.skip("needs 2 NVIDIA GPUs")
    problem = find_problem(name)
    source = Path(problem.declared_in).with_name("reference.py").read_text(encoding="utf-8")
    config = EvalConfig(
        device="cuda", size="published", world_size=2, until="time", timing_budget_s=0.3, trials=1, **options
    )
    feedback = evaluator.evaluate(problem, source, config)
    assert feedback.timing is not None, f"{feedback.failure}: {feedback.message}"
    return feedback.timing


def test_what_the_host_launches_ahead_takes_no_longer(local_evaluator: LocalEvaluator) -> None:
    timing = baseline_as_candidate(local_evaluator, "AllReduce")
    assert timing.baseline_graph_us is not None
    assert 0 < timing.baseline_graph_us < 1.5 * timing.baseline_us
    again = baseline_as_candidate(local_evaluator, "AllReduce", seed=1)
    assert again.baseline_graph_us == timing.baseline_graph_us, "it is measured once"


def test_nccl_reaches_registered_memory_where_it_lies(local_evaluator: LocalEvaluator) -> None:
    """AllReduce of 8 KiB takes 8.1 us with registered memory and 10.8 us without on two H200."""
    timing = baseline_as_candidate(local_evaluator, "AllReduce")
    assert timing.baseline_graph_us is not None and timing.baseline_registered_us is not None
    assert 0 < timing.baseline_registered_us < 1.5 * timing.baseline_graph_us
    after = baseline_as_candidate(local_evaluator, "ReduceScatter")
    assert after.baseline_registered_us is not None, "the gang can register another problem's memory"


def test_a_baseline_that_waits_for_its_device_has_no_graph_and_harms_nobody(local_evaluator: LocalEvaluator) -> None:
    waiting = baseline_as_candidate(local_evaluator, "EmbeddingLookup")
    assert waiting.baseline_graph_us is None and waiting.baseline_registered_us is None
    assert baseline_as_candidate(local_evaluator, "EmbeddingLookup", seed=1).baseline_us > 0
