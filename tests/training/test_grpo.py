"""GRPO learns from what it should, and from nothing else; tiny policies, evaluators that start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.examples import timed
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.trainer import KernelGRPOTrainer
from pkb_gym.training.results.archive import Archive
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import (
    BROKEN,
    FAST,
    SLOW,
    Watched,
    config,
    follow,
    lines,
    run,
    same_weights,
    say,
    submit,
    tokenizer_of,
)


def log_probability(policy: Path, trainer: KernelGRPOTrainer, before: list[int], reply: list[int]) -> float:
    """Of some tokens after others, by the policy as it was (None: as it is)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    ids = torch.tensor([before + reply])
    with torch.no_grad():
        found = torch.log_softmax(model(ids).logits[0, len(before) - 1 : -1], dim=-1)
    return float(found.gather(1, torch.tensor([reply]).T).sum())


def test_advantages_and_masks_of_two_turns_by_hand(monkeypatch, policy, evaluator, tmp_path):
    """Two rollouts; one improves on its second turn and closes, the other is right at once and closes.

    Improvements are (BROKEN, FAST - BROKEN, 0) and (SLOW, 0): to close is the second's second turn.
    """
    first, second, fix, bye = submit("compile_error"), submit("speedup 1"), submit("speedup 10"), say("Bye.")
    follow(monkeypatch, lines(first, second, fix, bye, bye))
    trainer = run(policy, evaluator, config(tmp_path), max_turns=3, trainer_class=Watched)
    (batch,) = trainer.batches
    tokenizer = tokenizer_of(policy)
    gap, gain = SLOW - BROKEN, FAST - BROKEN
    expected = {
        "compile_error": [(first, -gap), (None, 0.0), (fix, gain), (None, 0.0), (bye, 0.0)],
        "speedup 1": [(second, gap), (None, 0.0), (bye, -gain)],
    }
    for ids, mask, by_assistant, advantages in zip(
        batch["completion_ids"], batch["completion_mask"], batch["tool_mask"], batch["advantages"], strict=True
    ):
        ids, by_assistant, advantages = ids[mask.bool()], by_assistant[mask.bool()], advantages[mask.bool()]
        text = tokenizer.decode(ids)
        parts = expected["compile_error" if "compile_error" in text else "speedup 1"]
        at = 0
        for number, (message, advantage) in enumerate(parts):
            if message is None:
                after = tokenizer(parts[number + 1][0])["input_ids"]
                size = next(n for n in range(len(ids)) if ids[at + n : at + n + len(after)].tolist() == after)
                assert "<tool_response>" in tokenizer.decode(ids[at : at + size])
            else:
                size = len(tokenizer(message)["input_ids"])
                assert tokenizer.decode(ids[at : at + size]) == message
            assert by_assistant[at : at + size].tolist() == [int(message is not None)] * size
            assert advantages[at : at + size].tolist() == pytest.approx([advantage] * size)
            at += size
        assert at == len(ids)
    assert trainer.state.log_history[0]["reward/AllReduce"] == pytest.approx((FAST + SLOW) / 2)


def test_a_malformed_second_call_has_an_advantage_of_its_own(monkeypatch, policy, evaluator, tmp_path):
    """Own values are (FAST, 0) and (SLOW, SLOW): the malformed call has -SLOW, not FAST - SLOW of its first turn."""
    cut = submit("speedup 20").replace("}\n</tool_call>", "")
    follow(monkeypatch, lines(submit("speedup 10"), submit("speedup 1"), cut, submit("speedup 1")))
    arguments = {"credit": "own_value", "advantages": "leave_one_out", "max_turns": 2}
    trainer = run(policy, evaluator, config(tmp_path), trainer_class=Watched, **arguments)
    (batch,) = trainer.batches
    tokenizer = tokenizer_of(policy)
    at = next(row for row, ids in enumerate(batch["completion_ids"]) if "speedup 10" in tokenizer.decode(ids))
    found = batch["advantages"][at]
    begin = len(tokenizer(submit("speedup 10"))["input_ids"])
    size = len(tokenizer(cut)["input_ids"])
    end = int(batch["completion_mask"][at].sum())
    assert tokenizer.decode(batch["completion_ids"][at][end - size : end]) == cut
    assert found[:begin].tolist() == pytest.approx([FAST - SLOW] * begin)
    assert found[end - size : end].tolist() == pytest.approx([-SLOW] * size)


def test_an_exception_in_a_tool_takes_its_rollout_out_of_the_group(monkeypatch, policy, evaluator, tmp_path):
    """Of values 1, none and FAST the mean is that of the two that are known."""
    from pkb_gym.training.rollout.episodes import RolloutEpisode

    judge = RolloutEpisode.submit

    async def fragile(self, source):
        if source == "speedup 5":
            raise KeyError("a bug of this project")
        return await judge(self, source)

    monkeypatch.setattr(RolloutEpisode, "submit", fragile)
    follow(monkeypatch, lines(*map(submit, ("speedup 1", "speedup 5", "speedup 10"))))
    settings = config(tmp_path, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched, advantages="group_mean")
    half = (FAST - SLOW) / 2
    (batch,) = trainer.batches
    assert sorted(batch["advantages"][:, 0].tolist()) == pytest.approx([-half, 0.0, half])
    logged = trainer.state.log_history[0]
    assert logged["faults/crashed"] == 1 and logged["reward/AllReduce"] == pytest.approx((FAST + SLOW) / 2)


def test_the_environments_words_have_no_loss(monkeypatch, policy, evaluator, tmp_path):
    """Whatever log-probability its tokens have, loss and gradient are the same."""
    follow(
        monkeypatch, lines(submit("compile_error"), submit("speedup 1"), submit("speedup 10"), say("Bye."), say("Bye."))
    )

    class Probed(Watched):
        """Computes each loss twice; the second time the environment's tokens have other log-probabilities."""

        noise = 0.0

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            logps.retain_grad()
            self.logps = logps
            masked = 1 - self.batches[-1]["tool_mask"] * self.batches[-1]["completion_mask"]
            return logps + self.noise * masked, entropies, aux

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            loss.backward()
            masked = inputs["tool_mask"] * inputs["completion_mask"] == 0
            assert not self.logps.grad[masked].any() and self.logps.grad[~masked].any()
            model.zero_grad()
            self.noise = 3.0
            inputs["old_per_token_logps"] = self.logps.detach()
            other = super()._compute_loss(model, inputs)
            assert torch.equal(loss.detach(), other.detach())
            self.noise = 0.0
            return other

    trainer = run(policy, evaluator, config(tmp_path), max_turns=3, trainer_class=Probed)
    assert trainer.batches


@pytest.mark.parametrize(
    ("credit", "advantages"), [("improvement_only", "leave_one_out"), ("outcome", "group_relative")]
)
def test_with_a_constant_reward_the_policy_does_not_drift(monkeypatch, policy, evaluator, tmp_path, credit, advantages):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    arguments = {"credit": credit, "advantages": advantages, "max_turns": 2}
    # Of three equal values the mean is not always exactly the same number.
    settings = config(tmp_path, max_steps=2, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, **arguments)
    assert trainer.state.global_step == 2 and trainer.state.log_history[0]["reward"] > 1
    assert same_weights(policy, tmp_path)


def test_a_better_kernel_of_the_group_becomes_more_likely(monkeypatch, policy, evaluator, tmp_path):
    script = lines(submit("speedup 1"), submit("speedup 10"), submit("compile_error"), submit("speedup 1"))
    follow(monkeypatch, script)
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched)
    tokenizer = tokenizer_of(policy)
    batch = trainer.batches[0]
    before = batch["prompt_ids"][0][batch["prompt_mask"][0].bool()].tolist()
    gains = {
        source: log_probability(tmp_path, trainer, before, ids) - log_probability(policy, trainer, before, ids)
        for source in ("speedup 10", "compile_error")
        for ids in [tokenizer(submit(source))["input_ids"]]
    }
    assert gains["speedup 10"] > 0.1 and gains["speedup 10"] > gains["compile_error"]
    best, *_ = Archive.read(tmp_path / "archive.jsonl").kernels("AllReduce")
    assert (best.source, best.speedup, best.step) == ("speedup 10", 10, 0)


class Fragile(FakeEvaluator):
    """Falls whenever it is to judge a certain source."""

    def evaluate(self, problem, source, config, progress=None):
        if source == "speedup 5":
            raise InfrastructureError("the service was killed")
        return super().evaluate(problem, source, config, progress)


def test_an_evaluator_that_falls_in_a_step_neither_stops_nor_poisons_it(monkeypatch, policy, tmp_path):
    """Of three rollouts that are judged, one is better; the fourth, which is not, moves nothing and nobody's mean."""
    messages = [submit("speedup 1"), submit("speedup 5"), submit("speedup 10"), submit("speedup 1")]
    follow(monkeypatch, lines(*messages))
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, Fragile(), settings, max_turns=1, trainer_class=Watched, advantages="group_mean")
    found = {
        ("1", "5", "10")[1 if "speedup 5" in text else 2 if "speedup 10" in text else 0]: advantages[0].item()
        for text, advantages in (
            (trainer._tokenizer.decode(ids), advantages)
            for ids, advantages in zip(
                trainer.batches[0]["completion_ids"], trainer.batches[0]["advantages"], strict=True
            )
        )
    }
    mean = (2 * SLOW + FAST) / 3
    assert found == {"1": pytest.approx(SLOW - mean), "5": 0.0, "10": pytest.approx(FAST - mean)}
    logged = trainer.state.log_history[0]
    assert (logged["faults/crashed"], logged["submissions"], logged["reward/AllReduce"]) == (1, 4, pytest.approx(mean))
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert trainer.state.global_step == 1
    records = {record["source"]: record for record in read_jsonl(tmp_path / "rollouts.jsonl")}
    assert records["speedup 5"]["reward"] is None and records["speedup 5"]["fault"] == "crashed"
    assert records["speedup 5"]["feedback"] is None
    found = Feedback.model_validate(records["speedup 10"]["feedback"])
    assert LadderThenPerformance()(found) == FAST, "any reward can value it again"


def test_buffered_rollouts_keep_their_advantages(monkeypatch, policy, evaluator, tmp_path):
    """One generation for two batches, each used twice: shuffled and split, tokens and advantages stay together."""
    sources = ["speedup 1", "speedup 10", "compile_error", "speedup 4"]
    follow(monkeypatch, lines(*map(submit, sources)))
    settings = config(tmp_path, steps_per_generation=2, num_iterations=2, max_steps=4, num_generations=4)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched)
    values = [SLOW, FAST, BROKEN, LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=4))]
    assert len(trainer.batches) == 4 and len(evaluator.requested) == 4
    for batch in trainer.batches:
        for ids, used, advantages in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        ):
            text = trainer._tokenizer.decode(ids)
            own = next(value for source, value in zip(sources, values, strict=True) if f'"{source}"' in text)
            expected = own - (sum(values) - own) / 3
            assert advantages.tolist() == pytest.approx([expected if one else 0.0 for one in used.tolist()])
