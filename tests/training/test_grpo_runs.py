"""Runs of GRPO: they resume, end in time, log their phases, and refuse settings that cannot be trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.chat import submit_call
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.trainer import KernelGRPOTrainer
from tests.training.scripted import config, follow, row, run, same_weights, submit
from tests.whole_tables import sampled


def test_a_run_that_resumes_is_the_run_that_went_on(policy, evaluator, tmp_path):
    """Checkpoint 3 lies in the middle of a generation's rollouts and behind the first epoch; text is really sampled."""
    rows = [row("AllReduce"), row("Gather", seed=8), row("AllGather", seed=9), row("Broadcast", seed=10)]
    changes = {
        "max_steps": 7,
        "save_strategy": "steps",
        "save_steps": 1,
        "max_completion_length": 24,
        "steps_per_generation": 2,
        "temperature": 1.5,
    }
    scripted = {"rows": rows, "max_turns": 2, "trainer_class": Sampling}
    whole = run(policy, evaluator, config(tmp_path / "whole", **changes), **scripted)
    for step in sampled((3, 4), 2):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        folder = tmp_path / f"resumed-{step}"
        rest = run(policy, evaluator, config(folder, resume_from_checkpoint=str(checkpoint), **changes), **scripted)
        assert same_weights(tmp_path / "whole", folder)
        assert losses(rest) == losses(whole)
        assert (folder / "archive.jsonl").read_bytes() == (tmp_path / "whole" / "archive.jsonl").read_bytes()
        mine, theirs = submitted(folder), submitted(tmp_path / "whole")
        assert mine and mine == [record for record in theirs if record[0] >= step]
    assert not same_weights(policy, tmp_path / "whole")


class Sampling(KernelGRPOTrainer):
    """Samples text, and submits the fourth token's number as a speedup: random sources that can be judged."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._player._dialogue.read = self._read

    @staticmethod
    def _read(ids, context, reference) -> dict:
        source = "compile_error" if ids[3] % 3 == 0 else f"speedup {ids[3] % 7 + 1}"
        return {"role": "assistant", "content": "", "tool_calls": [submit_call(source)]}


def losses(trainer: KernelGRPOTrainer) -> list[tuple]:
    keys = ("step", "loss", "grad_norm", "learning_rate", "reward", "entropy")
    return [tuple(entry.get(key) for key in keys) for entry in trainer.state.log_history if "loss" in entry]


def submitted(folder: Path) -> list[tuple]:
    keys = ("step", "sample", "turn", "problem", "source", "reward")
    return [tuple(record[key] for key in keys) for record in read_jsonl(folder / "rollouts.jsonl")]


def test_a_run_ends_when_its_time_is_up_and_can_go_on(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    changes = {"max_steps": 3, "save_strategy": "steps", "save_steps": 100}
    run(policy, evaluator, config(tmp_path, **changes), max_turns=1, max_minutes=1e-9)
    assert json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())["global_step"] == 1
    rest = run(policy, evaluator, config(tmp_path, resume_from_checkpoint="last", **changes), max_turns=1)
    assert rest.state.global_step == 3
    assert [record["step"] for record in read_jsonl(tmp_path / "phases.jsonl")] == [0, 1, 2]


def test_a_run_ends_with_the_step_that_has_its_submissions_those_before_it_resumed_included(
    monkeypatch, policy, evaluator, tmp_path
):
    """Two rollouts a step submit one kernel each: with two steps there are four, and five come with the third."""
    follow(monkeypatch, lambda before: submit("speedup 3"))
    changes = {"max_steps": 9, "save_strategy": "steps", "save_steps": 1}
    first = run(policy, evaluator, config(tmp_path, **changes), max_turns=1, max_submissions=4)
    assert first.state.global_step == 2
    changes["resume_from_checkpoint"] = "last"
    rest = run(policy, evaluator, config(tmp_path, **changes), max_turns=1, max_submissions=5)
    assert rest.state.global_step == 3
    assert len(read_jsonl(tmp_path / "rollouts.jsonl")) == 6


def test_the_time_of_a_step_is_logged_by_phase(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    trainer = run(policy, evaluator, config(tmp_path), max_turns=1)
    logged = trainer.state.log_history[0]
    shares = {name: share for name, share in logged.items() if name.startswith("phase/")}
    assert set(shares) == {
        f"phase/{name}" for name in ("generation", "evaluation", "offload", "ranks", "learning", "other")
    }
    assert sum(shares.values()) == pytest.approx(1) and shares["phase/learning"] > 0
    (record,) = read_jsonl(tmp_path / "phases.jsonl")
    assert (record["step"], record["evaluations"]) == (0, 1) and record["evaluations_per_minute"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_per_generation": 2}, "1 prompts do not fill a batch: 4 rollouts, 2 of each prompt, take 2"),
        ({"resume_from_checkpoint": "nowhere"}, "nowhere holds no whole checkpoint"),
    ],
)
def test_what_cannot_be_trained_is_refused(policy, evaluator, tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        run(policy, evaluator, config(tmp_path, **changes))
