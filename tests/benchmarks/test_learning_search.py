"""The search on prompts: so many different kernels of each, valued and steered by the reward, and none twice."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import learning_search
from benchmarks.learning_prompts import first_of_each
from benchmarks.learning_search import main
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.attempts import read_rows
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import row


class Evaluator(FakeEvaluator):
    """Finds the same in all kernels."""

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_every_prompt_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    evaluator = Evaluator()
    monkeypatch.setattr(learning_search, "LocalEvaluator", lambda: evaluator)
    prompts = tmp_path / "prompts.jsonl"
    rows = [row("AllReduce", ring="sizes"), row("Reduce", ring="left_out"), row("GemvDecode", ring="sizes")]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in rows))
    command = ["--prompts", str(prompts), "--ring", "sizes", "--evaluations", "4", "--output", str(tmp_path / "found")]
    main(command)
    found = read_rows(tmp_path / "found" / "results.jsonl")
    assert [(one["problem"], one["turn"]) for one in found[:4]] == [("AllReduce", turn) for turn in range(4)]
    assert len({one["source"] for one in found[:4]}) == 4 and all(one["reward"] == 0.05 for one in found)
    assert len(found) == 4  # there are no families for the other one
    judged = len(evaluator.requested)
    main(command)
    assert len(evaluator.requested) == judged


def test_time_limit_keeps_the_evaluations_that_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A search ends between two evaluations, a prompt whose search has not begun stays absent, and the next call takes
    that one alone."""
    clock = iter([0.0, 0.0, 20.0, 40.0, 80.0, 80.0])
    monkeypatch.setattr(learning_search, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    evaluator = Evaluator()
    monkeypatch.setattr(learning_search, "LocalEvaluator", lambda: evaluator)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row(name)) + "\n" for name in ("AllReduce", "Reduce")))
    command = ["--prompts", str(prompts), "--evaluations", "4", "--output", str(tmp_path / "found")]
    main([*command, "--minutes", "1"])
    found = read_rows(tmp_path / "found" / "results.jsonl")
    assert [(one["problem"], one["turn"]) for one in found] == [("AllReduce", turn) for turn in range(3)]
    monkeypatch.setattr(learning_search, "time", SimpleNamespace(monotonic=lambda: 0.0))
    main(command)
    found = read_rows(tmp_path / "found" / "results.jsonl")
    assert [one["problem"] for one in found] == ["AllReduce"] * 3 + ["Reduce"] * 4


def test_services_judge_side_by_side(monkeypatch: pytest.MonkeyPatch):
    """The schedule of `grpo.py` is started with so many services, and ended."""
    started: list[tuple[str, int]] = []
    evaluator = Evaluator()

    def start(mode: str, host: HostGroup, *, services: int) -> EvaluationSchedule:
        started.append((mode, services))
        return EvaluationSchedule(evaluator, host)

    monkeypatch.setattr(learning_search, "start_evaluation", start)
    with learning_search.evaluators(3) as found:
        assert found is evaluator and not evaluator.closed
    assert started == [("dedicated", 3)] and evaluator.closed


def test_the_first_prompts_of_each_problem_are_taken():
    rows = [{"problem": problem, "ring": ring, "n": n} for n in range(3) for ring in "ab" for problem in "XY"]
    assert [(one["problem"], one["n"]) for one in first_of_each(rows, "a", 1)] == [("X", 0), ("Y", 0)]
    assert len(first_of_each(rows, None, 4)) == 8
