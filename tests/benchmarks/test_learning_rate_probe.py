"""The probe of learning rates: it measures what updates do, puts weights back, and goes on where it was stopped."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import learning_rate_probe
from benchmarks.learning_rate_probe import (
    AfterUpdate,
    Policy,
    RateFigures,
    Reply,
    changes,
    gradient_cosine,
    main,
    probe_rate,
    propose,
    rollout_batches,
)
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.training.inputs.rows import Row
from tests.training.conversations import tiny_corpus
from tests.training.scripted import row, submit, write_tiny_policy

RIGHT, WRONG = submit("speedup 9").removesuffix("<|im_end|>"), submit("compile_error").removesuffix("<|im_end|>")


@pytest.fixture(scope="module")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(tiny_corpus(), tmp_path_factory.mktemp("probed"))


@pytest.fixture(scope="module")
def prompts() -> list[Row]:
    """One to train on and one of the ring, for each of two problems."""
    return [
        row(name, seed=seed, ring=ring) for name in ("AllReduce", "Gather") for seed, ring in ((1, None), (2, "sizes"))
    ]


@pytest.fixture(scope="module")
def run_file(prompts: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a learning run has collected: two steps of rollouts, and the ring judged."""
    folder = tmp_path_factory.mktemp("run")
    rollouts = [
        {**prompt, "prompt": None, "step": step, "turn": 0, "reward": reward, "reply": reply, "is_right": reward > 1}
        for step in (0, 1)
        for prompt in prompts
        if prompt["ring"] is None
        for reward, reply in ((1.5, RIGHT), (0.0, WRONG))
    ]
    attempts = [
        Attempt(
            problem=prompt["problem"],
            sample=sample,
            turn=0,
            requested=EvalConfig(**{name: prompt[name] for name in COLUMNS}),
            source="speedup 9",
            reply=reply,
            feedback=feedback.model_copy(update={"problem": prompt["problem"]}),
            reward=1.0,
            reward_name="default",
        )
        for prompt in prompts
        if prompt["ring"] is not None
        for sample, (reply, feedback) in enumerate(((RIGHT, timed(100, 10, 9)), (WRONG, failed("compile_error"))))
    ]
    files = {
        "grpo/rollouts.jsonl": [json.dumps(one) for one in rollouts],
        "rings_sft/results.jsonl": [one.model_dump_json() for one in attempts],
    }
    with tarfile.open(folder / "run.tar.gz", "w:gz") as archive:
        for name, lines in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("".join(line + "\n" for line in lines))
            archive.add(folder / name, name)
    return folder / "run.tar.gz"


COLUMNS = ("device", "world_size", "size", "dtype", "language", "seed")


@pytest.fixture
def probe(tiny_policy: Path, prompts: list[Row], run_file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))

    def started(*more: str) -> dict[str, Any]:
        main(
            [
                str(run_file),
                f"--model={tiny_policy}",
                f"--prompts={tmp_path / 'prompts.jsonl'}",
                f"--out={tmp_path}",
                *more,
            ]
        )
        found: dict[str, Any] = json.loads((tmp_path / "learning_rate_probe.json").read_text())
        return found

    return started


def test_rates_are_measured_on_prompts_that_no_update_has_seen(probe):
    found = probe("--rates", "0.003", "0", "--updates", "2")
    moved, still = (RateFigures.model_validate(one) for one in found["rates"])
    assert (moved.rate, still.rate) == (0.003, 0)
    assert [after.update for after in moved.updates] == [1, 2]
    for after in still.updates:
        assert {*after.right.values(), *after.wrong.values(), after.kl} == {0.0}, "nothing has changed"
        assert after.correct == {"AllReduce": 0.5, "Gather": 0.5}
    last = moved.updates[-1]
    assert all(last.right[name] > last.wrong[name] for name in ("AllReduce", "Gather"))
    assert all(share > 0.5 for share in last.correct.values())
    assert found["proposed"] == 0.003 and 0 < found["cosine"] <= 1
    assert found["replies"] == [4, 4] and found["judged"] == 4


def test_the_same_command_goes_on_with_the_rates_that_are_missing(probe, monkeypatch):
    monkeypatch.setattr("benchmarks.common.commit", lambda: "0123456789ab")
    first = probe("--rates", "0.003", "--updates", "1")
    assert probe("--rates", "0.003", "0.001", "--updates", "1", "--limit-s", "-1") == first, "the time is up"
    both = probe("--rates", "0.003", "0.001", "--updates", "1")
    assert both["rates"][0] == first["rates"][0] and [one["rate"] for one in both["rates"]] == [0.003, 0.001]
    other = probe("--rates", "0.003", "--updates", "1", "--beta", "0.5")
    assert len(other["rates"]) == 1, "figures of other settings are not those of this run"


def test_a_gradient_is_that_of_the_clipped_loss_by_hand(tiny_policy):
    """-(A * ratio) / tokens: at ratio 1, its gradient is that of -A * log p / tokens; beyond the clip it is 0."""
    policy = Policy(tiny_policy, "cpu", pad=0, micro_batch=1)
    good = Reply("Gather", [5, 6, 7], [8, 9], is_right=True, advantage=2.0)
    old = policy.log_probabilities([good])
    policy.set_gradient([good], old, beta=0.0)
    found = policy.model.lm_head.weight.grad.clone()
    policy.model.zero_grad()
    logits = policy.model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0, 2:4]
    logps = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor([[8], [9]]))
    (-2.0 * logps.sum() / 2).backward()
    assert torch.allclose(found, policy.model.lm_head.weight.grad, atol=1e-6)
    policy.set_gradient([good], [of - 1 for of in old], beta=0.0)  # e times as probable as before
    assert not policy.model.lm_head.weight.grad.any()


def test_weights_are_put_back_and_padding_changes_nothing(tiny_policy):
    policy = Policy(tiny_policy, "cpu", pad=0, micro_batch=2)
    short = Reply("Gather", [5], [8, 9], is_right=True, advantage=1.0)
    long = Reply("Reduce", [5, 6, 7, 8], [9, 10, 11], is_right=False, advantage=-1.0)
    alone, beside = policy.log_probabilities([short])[0], policy.log_probabilities([short, long])[0]
    assert torch.allclose(alone, beside, atol=1e-5)
    probe_rate(policy, 0.01, [[short, long]], [short], updates=1, beta=0.0)
    assert torch.equal(policy.log_probabilities([short])[0], alone)
    assert gradient_cosine(policy, [[short], [short]]) == pytest.approx(1.0, abs=1e-3)
    assert gradient_cosine(policy, [[short]]) is None


def test_changes_by_hand():
    """Of Gather, one right reply gains 1 nat and a wrong one loses 1: e / (e + 1/e) are right, where half were."""
    replies = [Reply("Gather", [1], [2, 3], is_right=True), Reply("Gather", [1], [4, 5], is_right=False)]
    before = [torch.tensor([-2.0, -1.0]), torch.tensor([-1.0, -1.0])]
    after = [torch.tensor([-1.5, -0.5]), torch.tensor([-2.0, -1.0])]
    right, wrong, kl, correct = changes(replies, before, after)
    assert (right, wrong, kl) == ({"Gather": 1.0}, {"Gather": -1.0}, 0.0)
    assert correct == {"Gather": pytest.approx(2.71828 / (2.71828 + 1 / 2.71828), abs=1e-3)}


def figures(rate: float, right: float, wrong: float) -> RateFigures:
    """Gather has lost or gained so much, Reduce has gained on wrong ones in any case."""
    after = AfterUpdate(
        update=1, grad_norm=1.0, right={"Gather": right, "Reduce": 1.0}, wrong={"Gather": wrong}, kl=0.0, correct={}
    )
    return RateFigures(rate=rate, updates=(after,), seconds=0.0)


def test_the_greatest_rate_that_loses_no_problem_is_proposed():
    harmful, right, slow = figures(1e-4, -0.7, -3.0), figures(1e-5, -0.6, -2.0), figures(1e-6, 0.1, 0.0)
    assert propose([harmful, right, slow]) == 1e-5
    assert propose([harmful]) is None
    assert propose([figures(1e-5, 0.1, 0.3)]) is None, "wrong ones gain more than right ones"


def test_rollouts_without_an_advantage_are_left_out(tiny_policy, prompts):
    texts = learning_rate_probe.Texts(learning_rate_probe.AutoTokenizer.from_pretrained(tiny_policy), prompts)
    row_of = {**prompts[0], "step": 0, "turn": 0, "reply": RIGHT, "is_right": True}
    made = rollout_batches([{**row_of, "reward": of} for of in (1.0, 0.0, None)], texts, 1, negative_weight=0.5)
    assert [[one.advantage for one in batch] for batch in made] == [[1.0, -0.5]]
    with pytest.raises(learning_rate_probe.ConfigError, match="no rollout with an advantage"):
        rollout_batches([{**row_of, "reward": 1.0}] * 2, texts, 1, negative_weight=1.0)
