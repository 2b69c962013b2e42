"""The benchmark of requests of handovers: its order, its verdicts, and a run that goes on where one was cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import handover_requests
from benchmarks.handover_requests import Step, steps
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.examples import failed, timed


class FakeEvaluators:
    """Finds what is asked for early, unless configured otherwise.

    Attributes:
        evaluated: those that were not only compiled.
        answers: name -> feedback that is not the expected one, or an error.
    """

    evaluated: list[Step]
    answers: dict[str, Feedback | Exception]

    def __enter__(self) -> FakeEvaluators:
        return self

    def __exit__(self, *_: object) -> None: ...

    def evaluate(self, step: Step) -> Feedback:
        if step.config.until == "compile":
            return failed("compile_error")
        self.evaluated.append(step)
        answer = self.answers.get(step.name) or (timed(caught="late_output") if step.part == "early" else timed())
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def evaluators(monkeypatch: pytest.MonkeyPatch) -> type[FakeEvaluators]:
    FakeEvaluators.evaluated, FakeEvaluators.answers = [], {}
    monkeypatch.setattr(handover_requests, "Evaluators", FakeEvaluators)
    return FakeEvaluators


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "handover_requests.json").read_text(encoding="utf-8"))
    return content


def test_kinds_of_candidates_come_first_and_each_part_is_there(evaluators: type[FakeEvaluators]) -> None:
    wanted = list(steps())
    assert [step.part for step in wanted[:5]] == ["smoke"] * 5
    parts = {part: sum(step.part == part for step in wanted) for part in ("early", "honest", "cost")}
    assert parts == {"early": 30, "honest": 25, "cost": 20}
    sampled = [step.sampled for step in wanted if step.part == "cost"]
    assert sampled == [True, False] * 10
    fast = next(step for step in wanted if step.part == "fast")
    assert handover_requests.FAST in fast.source and handover_requests.SLOW not in fast.source


def test_all_as_expected(evaluators: type[FakeEvaluators], tmp_path: Path) -> None:
    assert handover_requests.main(["--out", str(tmp_path)]) == 0
    content = result(tmp_path)
    assert content["missing"] == 0 and len(content["rows"]) == len(list(steps())) == len(evaluators.evaluated)
    (early,) = [one for one in content["summary"] if one["name"] == "asks_from_within_its_kernel"]
    assert (early["evaluations"], early["late_output"], early["unexpected"]) == (10, 10, 0)


@pytest.mark.parametrize("name", ["expert", "answers_its_own_handovers"])
def test_what_is_not_as_expected_is_counted_and_the_rest_goes_on(
    evaluators: type[FakeEvaluators], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An honest kernel with a finding; an early one without."""
    evaluators.answers = {name: timed(caught="late_output") if name == "expert" else timed()}
    assert handover_requests.main(["--out", str(tmp_path)]) == 1
    content = result(tmp_path)
    assert content["missing"] == 0
    assert {one["name"] for one in content["summary"] if one["unexpected"]} == {name}
    assert name in capsys.readouterr().err


def test_a_machine_that_fails_is_a_row(evaluators: type[FakeEvaluators], tmp_path: Path) -> None:
    evaluators.answers = {"module with NCCL": InfrastructureError("no GPU any more")}
    assert handover_requests.main(["--out", str(tmp_path)]) == 1
    first = result(tmp_path)["rows"][0]
    assert (first["verdict"], first["message"]) == ("infrastructure", "no GPU any more")


def test_a_run_that_was_cut_off_goes_on(evaluators: type[FakeEvaluators], tmp_path: Path) -> None:
    evaluators.answers = {"asks_with_half_of_its_work_done": RuntimeError("cut off")}
    with pytest.raises(RuntimeError, match="cut off"):
        handover_requests.main(["--out", str(tmp_path)])
    before = len(result(tmp_path)["rows"])
    assert 5 < before < 10
    evaluators.evaluated, evaluators.answers = [], {}
    assert handover_requests.main(["--out", str(tmp_path)]) == 0
    assert len(evaluators.evaluated) == len(list(steps())) - before


def test_no_evaluation_begins_after_the_budget(evaluators: type[FakeEvaluators], tmp_path: Path) -> None:
    assert handover_requests.main(["--out", str(tmp_path), "--budget-s", "-1"]) == 0
    assert evaluators.evaluated == []
