"""TRL's `GRPOTrainer` as it is, with rollouts whose submissions are judged side by side."""

from __future__ import annotations

import json
import threading

import pytest
from datasets import Dataset
from trl import GRPOTrainer

from pkb_gym.engine.evaluators import local
from pkb_gym.training.kernel_rollouts import KernelRollouts
from tests.docs.pages import DOCS, code_blocks
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import BROKEN, FAST, SLOW, config, follow, row, say, submit

ROWS = [row("AllReduce"), row("Gather", seed=8)]
MESSAGES = {"AllReduce": ["speedup 10", "compile_error"], "Gather": ["speedup 1", "infrastructure"]}
"""Problem -> what its two rollouts submit first; those that can submit once more say goodbye instead."""


def script(before: str) -> str:
    """The next message; prompts name their problem."""
    if "<tool_response>" in before:
        return say("Bye.")
    problem = next(name for name in MESSAGES if f"{name}." in before)
    rest = BEGUN.setdefault(problem, list(MESSAGES[problem]))
    return submit(rest.pop(0))


BEGUN: dict[str, list[str]] = {}


@pytest.fixture(autouse=True)
def nothing_begun(monkeypatch):
    BEGUN.clear()
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def test_the_rollouts_of_a_batch_are_judged_side_by_side(monkeypatch, policy, tmp_path):
    """All four evaluations wait for each other, so that none would end if they ran one after another."""
    follow(monkeypatch, script)
    rollouts = KernelRollouts(ROWS, FakeEvaluator(meet=threading.Barrier(4)), max_turns=2)
    learnt = []

    class Noting(GRPOTrainer):
        """Keeps what it learns from."""

        def _compute_loss(self, model, inputs):
            learnt.append(inputs)
            return super()._compute_loss(model, inputs)

    trainer = Noting(
        str(policy),
        args=config(tmp_path, per_device_train_batch_size=4, scale_rewards="none"),
        train_dataset=Dataset.from_list(ROWS),
        reward_funcs=rollouts.reward,
        rollout_func=rollouts.play,
    )
    trainer.train()
    rollouts.close()
    values = {(one.task.problem.name, one.submissions[0].turn.source): one.episode_value for one in rollouts.episodes}
    assert values == {
        ("AllReduce", "speedup 10"): pytest.approx(FAST),
        ("AllReduce", "compile_error"): pytest.approx(BROKEN),
        ("Gather", "speedup 1"): pytest.approx(SLOW),
        ("Gather", "infrastructure"): None,
    }
    (batch,) = learnt
    half = (FAST - BROKEN) / 2
    assert sorted(batch["advantages"].tolist()) == pytest.approx([-half, 0.0, 0.0, half])
    texts = trainer.processing_class.batch_decode(batch["completion_ids"])
    for text, ids, mask in zip(texts, batch["completion_ids"], batch["tool_mask"], strict=True):
        assert "<tool_response>" in text
        assert "<tool_response>" not in trainer.processing_class.decode(ids[mask.bool()])


def test_the_example_of_the_page_runs(monkeypatch, policy, tmp_path):
    follow(monkeypatch, lambda before: submit("speedup 10"))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({**one, "part": "train"}) + "\n" for one in ROWS))
    evaluator = FakeEvaluator()
    monkeypatch.setattr(local, "LocalEvaluator", lambda: evaluator)
    text = code_blocks(DOCS / "training.md", "example")["grpo_trainer"]
    tiny = config(tmp_path / "run", max_steps=1)
    for old, new in (('"data"', repr(str(tmp_path))), ('"Qwen/Qwen3-0.6B"', repr(str(policy)))):
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setattr("trl.GRPOConfig", lambda *_, **__: tiny)
    names: dict = {}
    exec(text, names)
    names["rollouts"].close()
    assert names["trainer"].state.global_step == 1 and len(evaluator.requested) >= 1
    assert names["trainer"].state.log_history[0]["reward"] == pytest.approx(FAST)
