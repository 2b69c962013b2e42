"""Rollouts of GRPO: which messages submit, when a rollout ends, what is judged and generated at the same time."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
from trl import GRPOTrainer

from pkb_gym.rewards.default import LadderThenPerformance
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import (
    FAST,
    Watched,
    config,
    follow,
    lines,
    run,
    say,
    script_generation,
    submit,
    tokenizer_of,
)
from tests.waiting import PATIENCE_S


def test_a_single_submission_is_a_block_of_code(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lines(say("```cpp\nspeedup 10\n```"), say("I cannot."), *[say("```\nspeedup 1\n```")] * 2))
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, evaluator, settings, single_turn=True, trainer_class=Watched)
    logged = trainer.state.log_history[0]
    ten, one = (LadderThenPerformance()(FakeEvaluator._found(f"speedup {number}\n").model_copy()) for number in (10, 1))
    assert logged["reward/AllReduce"] == pytest.approx((ten + 2 * one) / 4)
    assert (logged["submissions"], logged["evaluations"], logged["duplicates"]) == (3, 2, 1)
    assert len(evaluator.requested) == 2 and logged["episodes_without_submission"] == 1
    assert trainer.batches[0]["advantages"].shape == trainer.batches[0]["completion_ids"].shape


def test_the_last_submission_that_is_allowed_ends_a_rollout(monkeypatch, policy, evaluator, tmp_path):
    requested = []

    def script(before: str) -> str:
        requested.append(before)
        return submit(f"speedup {len(requested)}")

    follow(monkeypatch, script)
    trainer = run(policy, evaluator, config(tmp_path, max_completion_length=2000), max_turns=2, trainer_class=Watched)
    assert len(requested) == 4 and len(evaluator.requested) == 4
    ends = [
        ids[mask.bool()][-1]
        for ids, mask in zip(trainer.batches[0]["completion_ids"], trainer.batches[0]["completion_mask"], strict=True)
    ]
    assert all(end == trainer._tokenizer.eos_token_id for end in ends)
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 0


def test_a_call_that_cannot_be_carried_out_is_answered_and_earns_nothing(monkeypatch, policy, evaluator, tmp_path):
    bad = submit("speedup 10").replace('"source"', '"text"')
    follow(monkeypatch, lines(bad, bad, submit("speedup 10"), say("I give up.")))
    arguments = {"credit": "own_value", "advantages": "group_mean", "over": "group"}
    trainer = run(policy, evaluator, config(tmp_path), max_turns=2, trainer_class=Watched, **arguments)
    logged = trainer.state.log_history[0]
    assert logged["tools/failure_frequency"] == pytest.approx(2 / 3) and logged["submissions"] == 1
    assert logged["reward/AllReduce"] == pytest.approx(FAST / 2)
    (batch,) = trainer.batches
    assistant_mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    found = sorted(
        sorted(set(own[mask].tolist())) for own, mask in zip(batch["advantages"], assistant_mask, strict=True)
    )
    # Own values are (0, FAST) and, with the reply that gives up, (0, 0); their mean is FAST / 4.
    assert found == [[pytest.approx(-FAST / 4)], [pytest.approx(-FAST / 4), pytest.approx(3 * FAST / 4)]]


def test_rollouts_without_room_for_more_end(monkeypatch, policy, evaluator, tmp_path):
    """Their last submission counts; what was answered to it is left out."""
    follow(monkeypatch, lambda before: submit("speedup 10"))
    size = len(tokenizer_of(policy)(submit("speedup 10"))["input_ids"])
    trainer = run(
        policy, evaluator, config(tmp_path, max_completion_length=size + 3), max_turns=4, trainer_class=Watched
    )
    assert trainer.batches[0]["completion_ids"].shape[1] == size and trainer.batches[0]["tool_mask"].all()
    assert trainer.state.log_history[0]["submissions"] == 2


def test_submissions_are_judged_while_others_are_generated(policy, tmp_path, monkeypatch):
    """The first sequence ends long before the second; by the time that the second does, the first is being judged."""
    begun = threading.Event()
    seen = []

    class Noticing(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            begun.set()
            return super().evaluate(problem, source, config, progress)

    tokenizer = tokenizer_of(policy)
    words = [tokenizer(submit("speedup 2"))["input_ids"], tokenizer(say("word " * 40))["input_ids"]]

    from transformers import GenerationMixin

    def slowly(self, input_ids, stopping_criteria, **_: object):
        """Ends replies like `generate`: token by token for all sequences, those that ended padded."""
        for at in range(max(map(len, words))):
            column = [[ids[at] if at < len(ids) else tokenizer.pad_token_id] for ids in words]
            input_ids = torch.cat([input_ids, torch.tensor(column)], dim=1)
            assert not stopping_criteria(input_ids, None).any()
            if at == len(words[0]) + 1:
                seen.append(begun.wait(PATIENCE_S))
        return input_ids

    monkeypatch.setattr(GenerationMixin, "generate", slowly)
    trainer = run(policy, Noticing(), config(tmp_path), max_turns=1)
    assert seen == [True] and trainer.state.log_history[0]["submissions"] == 1


def test_a_batch_is_generated_in_chunks(monkeypatch, policy, evaluator, tmp_path):
    sizes = []
    generate = script_generation(lambda _: submit("speedup 3"))

    @functools.wraps(generate)
    def noting(self, prompt_ids, *rest, **named):
        sizes.append(len(prompt_ids))
        return generate(self, prompt_ids, *rest, **named)

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", noting)
    settings = config(tmp_path, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, max_turns=1, generation_chunk=2)
    assert sizes == [2, 1] and trainer.state.log_history[0]["submissions"] == 3


def test_continuous_batching_generates(policy, evaluator, tmp_path):
    """Text is really sampled; nothing in it can be read."""
    settings = config(
        tmp_path,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={"num_blocks": 64, "max_batch_tokens": 4096},  # not half of the memory
        max_completion_length=12,
    )
    trainer = run(policy, evaluator, settings, trainer_class=Watched)
    assert trainer.state.log_history[0]["unread_replies"] == 2
    assert 0 < trainer.batches[0]["completion_mask"].sum(dim=1).max() <= 12
