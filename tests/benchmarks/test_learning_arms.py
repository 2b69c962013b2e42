"""Arms of a learning run beside the training without their options, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import learning_run_report
from benchmarks.learning_arms import Trained, arm_figures, by_submissions, last_means
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.training.results.policy_summary import prompt_key
from tests.benchmarks.test_learning_run_report import turn, write_archive
from tests.benchmarks.test_learning_seeds import judged_prompt


def rollout(step: int, sample: int, number: int, failure: str | None, reward: float | None) -> dict:
    return {**turn("A", sample, number, failure, reward), "step": step, "is_duplicate": False}


ROLLOUTS = [
    rollout(0, 0, 0, "race", 0.25),
    rollout(0, 0, 1, None, 1.0),
    rollout(0, 1, 0, None, 2.0),
    rollout(0, 1, 1, "no_submission", 0.0),
    rollout(1, 0, 0, "race", 0.5),
    rollout(1, 1, 0, None, None),  # the evaluator failed
]


def test_a_training_is_followed_by_its_submissions():
    assert by_submissions(ROLLOUTS) == [
        {"submissions": 3, "reward": 1.5, "correct": 1.0, "correct_first": 0.5},
        {"submissions": 5, "reward": 0.5, "correct": 0.0, "correct_first": 0.0},
    ]
    curve = [{"submissions": n, "reward": n, "correct": 0.5, "correct_first": 0.25} for n in (70, 90, 100, 110)]
    assert last_means(curve, 100) == {"reward": 95.0, "correct": 0.5, "correct_first": 0.25}
    assert last_means(curve[:1], 100) is None


def test_an_arm_is_compared_after_its_first_turn_and_after_its_last():
    before = [turn("A", 0, 0, "race", 0.25), turn("B", 0, 0, None, 1.0)]
    after = [turn("A", 0, 0, "race", 0.5), turn("A", 0, 1, None, 1.0), turn("B", 0, 0, None, 1.0)]
    rings = {prompt_key(row): "sizes" for row in before}
    arm = Trained({"arm": "two_turns", "seed": 2, "options": {"grpo-turns": 2}}, after, ROLLOUTS)
    found = arm_figures(arm, Trained({"seed": 2}, before, ROLLOUTS[:3]), [], rings)
    assert found["equal_submissions"] == 3 and set(found["gains"]) == {"other"}
    gains = found["gains"]["other"]["sizes"]
    assert gains["first"]["reward"]["mean"] == pytest.approx(0.25 / 2)
    assert gains["last"]["reward"]["mean"] == pytest.approx(0.75 / 2)
    assert [gains[turns]["correct"]["mean"] for turns in ("first", "last")] == [0.0, 0.5]
    assert found["trainings"]["arm"]["submissions"] == 5 and found["trainings"]["other"]["submissions"] == 3


def test_the_report_compares_arms_and_feedback_of_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    step = {"step": 0, "wall_s": 1.0, "phases_s": {}, "stages_s": {}, "evaluations": 1, "gpu_utilisations": []}

    def judged(reward: float) -> dict:
        return Attempt(problem="A", requested=config, source="int x;", reward=reward).model_dump(mode="json")

    def write(name: str, about: dict, **stages: float) -> str:
        results = {f"{stage}/results.jsonl": judged(reward) for stage, reward in stages.items()}
        training = {"grpo/rollouts.jsonl": ROLLOUTS[0], "grpo/phases.jsonl": step}
        write_archive(tmp_path / name, {"about.json": {"commit": "c" * 12, **about}, **training, **results})
        return str(tmp_path / name)

    first = write("0.tar.gz", {"seed": 0}, rings_sft=0.25, rings_grpo=0.5)
    second = write("2.tar.gz", {"seed": 2, "arm": None}, rings_sft=0.25, rings_grpo=0.5, verdict_sft=0.25)
    arm = write("arm.tar.gz", {"seed": 2, "arm": "two_turns"}, rings_grpo=1.0, verdict_grpo=1.0)
    silent = write("silent.tar.gz", {"seed": 2, "arm": "silent"})
    lost = write("lost.tar.gz", {"seed": 5, "arm": "lost"}, rings_grpo=1.0)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({**judged_prompt(config), "ring": "sizes"}) + "\n")
    more = ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path), "--name", "another"]
    learning_run_report.main([arm, first, silent, second, *more])
    found = json.loads((tmp_path / "another.json").read_bytes())
    assert found["seed"] == 0 and found["joined"]["seeds"] == [0, 2], "arms are no seeds"
    assert [one["arm"] for one in found["arms"]] == ["two_turns"]
    assert found["arms"][0]["gains"]["other"]["sizes"]["last"]["reward"]["mean"] == 0.5
    assert found["arms"][0]["gains"]["sft"]["sizes"]["last"]["reward"]["mean"] == 0.75
    assert "arm silent is left out: silent has not trained, or was not judged" in capsys.readouterr().out
    of = [(one["seed"], one["arm"], one["policy"], one["ring"]) for one in found["feedback"]]
    assert of == [(2, "two_turns", "grpo", "sizes"), (2, None, "sft", "sizes")]
    learning_run_report.main([first, *more])
    assert not {"arms", "feedback"} & set(json.loads((tmp_path / "another.json").read_bytes()))
    with pytest.raises(ConfigError, match="arm lost needs the archive of seed 5"):
        learning_run_report.main([first, lost, *more])
    with pytest.raises(ConfigError, match="arms alone"):
        learning_run_report.main([arm, *more])
