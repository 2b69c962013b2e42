"""Steps of evaluations on a cluster: which worker takes each, and which are left out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.records.feedback import Failure, Stage
from tests.cluster.on_cluster import ON_TWO, PROBLEM, by_make_cluster, logged
from tests.waiting import PATIENCE_S, until

pytestmark = by_make_cluster


def test_each_step_has_its_place(evaluator, tmp_path):
    """Compile, check and the rest in three processes; the artifact of the first is found by the others."""
    log, states = tmp_path / "log", []
    feedback = evaluator.evaluate(PROBLEM, f"speedup 3\nlog {log}", ON_TWO, states.append)
    assert feedback.timing.speedup_low == 3.0 and feedback.config.until == "profile"
    steps = logged(log)
    assert [step[0] for step in steps] == ["compile", "check", "profile"]
    assert [step[2] for step in steps] == ["compiled", "found", "found"]
    assert len({step[3] for step in steps}) == 3
    assert states[0] == "queued" or states[0] == "compile"


@pytest.mark.parametrize("words", ["compile_error", "output_mismatch 0.5", "deadlock", "race"])
def test_what_fails_early_takes_no_exclusive_gang(evaluator, tmp_path, words):
    before = evaluator.status().exclusive_steps
    feedback = evaluator.evaluate(PROBLEM, f"{words}\nlog {tmp_path / 'log'}", ON_TWO)
    assert feedback.failure == words.split()[0] and feedback.config.until == "profile"
    assert evaluator.status().exclusive_steps == before
    assert len(logged(tmp_path / "log")) == (1 if words == "compile_error" else 2)


@pytest.mark.parametrize(("last", "stage", "steps"), [("compile", Stage.COMPILE, 1), ("check", Stage.CHECK, 2)])
def test_an_evaluation_ends_with_the_stage_that_was_asked_for(evaluator, tmp_path, last, stage, steps):
    config = ON_TWO.model_copy(update={"until": last})
    feedback = evaluator.evaluate(PROBLEM, f"speedup 3\nlog {tmp_path / 'log'}", config)
    assert (feedback.stage, feedback.failure, feedback.config.until) == (stage, None, last)
    assert len(logged(tmp_path / "log")) == steps


def test_a_source_is_compiled_once_for_all_seeds(evaluator, tmp_path):
    log = tmp_path / "log"
    with ThreadPoolExecutor(4) as threads:
        configs = [ON_TWO.model_copy(update={"seed": seed, "until": "check"}) for seed in range(4)]
        found = list(threads.map(lambda config: evaluator.evaluate(PROBLEM, f"speedup 2\nlog {log}", config), configs))
    assert [feedback.config.seed for feedback in found] == [0, 1, 2, 3]
    assert sorted(step[1] for step in logged(log) if step[0] == "check") == ["0", "1", "2", "3"]
    assert len([step for step in logged(log) if step[0] == "compile"]) == 1


def test_equal_requests_are_evaluated_once(evaluator, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    source = f"speedup 2\nlog {log}\nwait {go}"
    before = evaluator.status().joined
    key = evaluator.submit(PROBLEM, source, ON_TWO)
    assert evaluator.submit(PROBLEM, source, ON_TWO) == key
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(evaluator.evaluate, PROBLEM, source, ON_TWO) for _ in range(2)]
        until(lambda: evaluator.status().joined == before + 3)
        go.touch()
        assert waiting[0].result(PATIENCE_S) == waiting[1].result(PATIENCE_S)
    assert evaluator.evaluate(PROBLEM, source, ON_TWO).passed, "answered from what is kept"
    assert len(logged(log)) == 3


def test_lone_surrogates_are_rejected_and_no_error(evaluator):
    assert evaluator.evaluate(PROBLEM, "\ud800", ON_TWO).failure is Failure.REJECTED


def test_cuda_sources_are_compiled_where_no_node_has_a_gpu(evaluator, tmp_path):
    config = ON_TWO.model_copy(update={"device": "cuda", "until": "check"})
    evaluator.evaluate(PROBLEM, f"compiled_only\nlog {tmp_path / 'log'}", config)
    assert [step[0] for step in logged(tmp_path / "log")] == ["check"], "one task, and no gang"


def test_emulated_ranks_run_where_no_node_has_a_gpu(evaluator, tmp_path):
    config = ON_TWO.model_copy(update={"device": "emulated", "language": "cuda"})
    feedback = evaluator.evaluate(PROBLEM, f"speedup 3\nlog {tmp_path / 'log'}", config)
    assert feedback.stage is Stage.CHECK and feedback.failure is None
    assert [step[0] for step in logged(tmp_path / "log")] == ["compile", "check"], "nothing is timed"
