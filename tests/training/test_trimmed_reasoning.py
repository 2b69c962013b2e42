"""GRPO that leaves earlier reasoning out of the context: what is learnt is what was read and what was sampled."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.kernel_rollouts import KernelRollouts
from pkb_gym.training.scratch_model import make_model
from tests.training.chat_families import FAMILIES
from tests.training.scripted import BROKEN, FAST, TINY, Watched, config, row, run

QWEN3 = FAMILIES["qwen3"]
SCRIPTS = [["compile_error", "speedup 10", "speedup 10"], ["compile_error", "DONE"]]
"""Sources that either rollout submits, turn by turn, until it is done."""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of two layers with the tokens and the template of Qwen3."""
    folder = tmp_path_factory.mktemp("thinker")
    tokenizer = QWEN3.tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(TINY, tokenizer, seed=0).save_pretrained(folder)
    return folder


def thought(number: int, turn: int) -> str:
    """A reply with reasoning of its own."""
    source = SCRIPTS[number][turn]
    text = "Done." if source == "DONE" else QWEN3.call.split("</think>\n\n")[1].replace("JSON", json.dumps(source))
    return f"<think>\nREASON {number}{turn}\n</think>\n\n{text}{QWEN3.end}"


@pytest.fixture
def read(monkeypatch) -> list[tuple[list[int], list[int]]]:
    """What the policy reads and samples; the two rollouts are told apart by their place in a round."""
    pairs: list[tuple[list[int], list[int]]] = []

    @functools.wraps(GRPOTrainer._generate_single_turn)
    def generate(self, prompt_ids, *_, **__):
        turn = self._tokenizer.decode(prompt_ids[0]).count("<tool_response>")
        replies = [self._tokenizer(thought(number, turn))["input_ids"] for number in range(len(prompt_ids))]
        pairs.extend(zip(map(list, prompt_ids), replies, strict=True))
        return replies, None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", generate)
    return pairs


def test_rows_are_what_was_read_and_sampled(thinker, evaluator, read, tmp_path):
    arguments = {"credit": "own_value", "advantages": "group_mean", "over": "group", "trim_reasoning": True}
    settings = config(tmp_path, max_completion_length=4000)
    trainer = run(thinker, evaluator, settings, [row()], max_turns=3, trainer_class=Watched, **arguments)
    (batch,) = trainer.batches
    decode = trainer._tokenizer.decode
    learnt, advantages = [], {}
    for at in range(len(batch["prompt_ids"])):
        own = (batch["completion_mask"][at] * batch["tool_mask"][at]).bool()
        if not own.any():
            assert not batch["advantages"][at].any()
            continue
        completion = batch["completion_ids"][at][batch["completion_mask"][at].bool()]
        assert own.sum() == len(completion), "the environment's tokens are in the prompts alone"
        learnt.append((batch["prompt_ids"][at][batch["prompt_mask"][at].bool()].tolist(), completion.tolist()))
        (advantages[decode(completion).split("REASON ")[1][:2]],) = set(batch["advantages"][at][own].tolist())
    assert sorted(learnt) == sorted(read) and len(learnt) == 5 and len(batch["prompt_ids"]) == 6
    for prompt, _ in learnt:
        text = decode(prompt)
        assert "REASON" not in text and text.count("<tool_response>") == text.count('{"name": "submit", "arguments"')
    worth = {"00": BROKEN, "01": FAST, "02": FAST, "10": BROKEN, "11": 0.0}
    mean = sum(worth.values()) / len(worth)
    assert advantages == {name: pytest.approx(value - mean, abs=1e-5) for name, value in worth.items()}
    assert int(batch["num_items_in_batch"]) == sum(len(completion) for _, completion in learnt)
    logged = trainer.state.log_history[0]
    assert logged["reward"] == pytest.approx(logged["reward/AllReduce"]) == pytest.approx((FAST + BROKEN) / 2)
    assert logged["rewards/kernel/mean"] == logged["reward"] and logged["frac_reward_zero_std"] == 0
    assert len(set(trainer._logs["advantages"])) == 2 == len(trainer._logs["prompt"])


def test_the_stock_trainer_takes_one_sequence_for_a_rollout(evaluator):
    with pytest.raises(ConfigError, match="trim_reasoning needs KernelGRPOTrainer"):
        KernelRollouts([], evaluator, dialogue=DialogueOptions(trim_reasoning=True))
