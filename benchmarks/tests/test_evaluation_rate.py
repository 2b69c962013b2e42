"""Submissions are judged once each, by every number of services, and compared with what was found of them before."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import evaluation_rate
from benchmarks.evaluation_rate import distinct, main, working_s
from benchmarks.tests.scripted_evaluator import ScriptedEvaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed, timed

CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", dtype="bfloat16", language="cpp")


def attempt(source: str | None, seed: int = 0) -> Attempt:
    requested = CONFIG.model_copy(update={"seed": seed})
    found = None if source is None else timed(speedup_low=2.0)
    return Attempt(problem="AllReduce", requested=requested, source=source, feedback=found)


def test_every_request_is_judged_once_by_each_number_of_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    evaluator, started = ScriptedEvaluator(), []
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))

    def start(mode: str, _host: object, services: int) -> Mock:
        started.append((mode, services))
        return Mock(evaluator=evaluator)

    monkeypatch.setattr(evaluation_rate, "start_evaluation", start)
    attempts = [attempt("speedup 2"), attempt(None), attempt("speedup 2"), attempt("speedup 2", seed=1), attempt("x")]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(one.to_line() + "\n" for one in attempts))
    main([str(results), "--services", "1", "3", "--kernel-timeout", "4", "--out", str(tmp_path)])
    assert started == [("dedicated", 1), ("dedicated", 3)]
    assert len(evaluator.requested) == 2 * 3 and {config.timeout_s for _, config in evaluator.requested} == {4.0}
    one, three = json.loads((tmp_path / "evaluation_rate.json").read_bytes())["rates"]
    assert (one["services"], three["services"], one["evaluations"]) == (1, 3, 3)
    assert one["verdicts"] == {"passed": 2, "compile_error": 1} and one["other_verdicts"] == 1


def test_waiting_is_no_work():
    found = failed("race").model_copy(update={"durations_s": {"check": 2.0, "waiting for its turn": 9.0, "time": 0.5}})
    assert working_s(found) == 2.5
    assert [one.source for one in distinct([attempt(None), attempt("a"), attempt("a"), attempt("b")])] == ["a", "b"]
