"""Right kernels are judged again, each time by other services."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import reward_repeats
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed, timed
from tests.benchmarks.test_learning_run_report import write_archive
from tests.envs.fake_evaluator import FakeEvaluator

CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", dtype="bfloat16", language="cpp")


def attempt(source: str, *, right: bool = True) -> dict:
    found = timed(speedup_low=2.0) if right else failed("compile_error")
    made = Attempt(problem="AllReduce", requested=CONFIG, source=source, feedback=found, reward=1.0)
    return made.model_dump(mode="json")


def test_right_kernels_alone_are_judged_as_often_as_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[FakeEvaluator] = []
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))

    def start(mode: str, _host: object, services: int) -> Mock:
        assert (mode, services) == ("dedicated", 2)
        started.append(FakeEvaluator())
        return Mock(evaluator=started[-1])

    monkeypatch.setattr(reward_repeats, "start_evaluation", start)
    part = {"prompt": 0, "sample": 0, "attempts": [attempt("speedup 3"), attempt("y", right=False)]}
    files = {"rings_sft/results.jsonl": attempt("speedup 2"), "samples/parts/0.jsonl": part}
    write_archive(tmp_path / "run.tar.gz", files)
    output = tmp_path / "repeats" / "results.jsonl"
    run = [str(tmp_path / "run.tar.gz"), "--services", "2", "--output", str(output)]
    reward_repeats.main([*run, "--times", "3"])
    assert [len(one.requested) for one in started] == [2, 2, 2]
    found = [(one.source, one.sample, one.feedback.speedup) for one in read_attempts(output)]
    assert found == [(f"speedup {speed}", sample, speed) for sample in range(3) for speed in (2, 3)]
    write_archive(tmp_path / "run.tar.gz", {"rings_sft/results.jsonl": attempt("y", right=False)})
    with pytest.raises(SystemExit):
        reward_repeats.main(run)
