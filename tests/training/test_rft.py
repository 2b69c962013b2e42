"""Rejection sampling: the best distinct right kernels of each prompt, and a model that has learnt them."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer

from pkb_gym.corpus.conversations import submissions
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.training import rft
from pkb_gym.training.inputs.chat import render
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.inputs.rows import load_corpus
from pkb_gym.training.rollout.sampling import SamplingConfig, TransformersSampler
from tests.training.conversations import source
from tests.training.scripted import row as prompt
from tests.training.test_sft import QUICK


def result(text: str, reward: float | None, *, is_right: bool = True, **columns):
    requested = {name: prompt()[name] for name in ("problem", "language", "size", "dtype", "world_size", "seed")}
    found = {"source": text, "source_hash": source_sha256(text), "reward": reward, "is_right": is_right}
    return {**requested, **found, "stage": "time", "speedup": reward, "sample": 0, "turn": 0, **columns}


RESULTS = [
    result("slow", 1.1),
    result("fast", 1.6),
    result("slow", 1.2),  # the same source, timed again
    result("faster", 1.9),
    result("slower than the baseline", 0.8),
    result("wrong", 1.9, is_right=False),
    result("not judged", None),
    result("another prompt", 2.0, seed=99),
    result("of all gather", 1.0, problem="AllGather"),
]
PROMPTS = [prompt(), prompt("AllGather"), prompt("Broadcast")]


def sources(rows) -> list[str]:
    return [submissions(row["messages"])[0] for row in rows]


def test_the_best_distinct_right_kernels_of_each_prompt_are_kept():
    rows = rft.best_of(RESULTS, PROMPTS, keep=2, min_reward=1.0)
    assert sources(rows) == ["faster", "fast", "of all gather"]
    assert sources(rft.best_of(RESULTS, PROMPTS, keep=9, min_reward=1.0)) == ["faster", "fast", "slow", "of all gather"]
    slow = rft.best_of(RESULTS, PROMPTS, keep=9, min_reward=1.0)[2]
    assert slow["reward"] == 1.2 and slow["messages"][:2] == prompt()["prompt"]
    assert len({row["id"] for row in rows}) == 3


def test_nothing_good_enough_is_reported():
    with pytest.raises(ConfigError, match=r"no right kernel has a reward of 1.95 or more on .* \(1 are on other"):
        rft.best_of(RESULTS, PROMPTS, keep=2, min_reward=1.95)


def test_a_model_learns_the_kernels(scratch_model, tmp_path):
    best = source(64)
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*RESULTS, result(best, 1.95)]))
    DatasetDict({"train": Dataset.from_list(PROMPTS[:1])}).save_to_disk(tmp_path / "prompts")
    argv = ["--results", str(tmp_path / "rollouts.jsonl"), "--prompts", str(tmp_path), "--keep", "1"]
    argv += ["--model_name_or_path", str(scratch_model), "--output_dir", str(tmp_path / "run"), "--max_steps", "60"]
    rft.main([*argv, *QUICK, "--save_strategy", "no"])

    corpus = load_corpus(str(tmp_path / "run"))
    assert sources(corpus) == [best] and corpus[0]["reward"] == 1.95 and corpus[0]["kind"] == "single"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    ids = tokenizer(render(tokenizer, prompt()["prompt"], reply_next=True))["input_ids"]
    (reply,) = TransformersSampler(model, tokenizer, SamplingConfig(temperature=0)).sample([ids], [200], seed=0)
    assert json.dumps(best) in tokenizer.decode(reply)


def test_the_form_of_submissions_and_the_template_are_those_asked_for(monkeypatch, tmp_path):
    taught = []
    monkeypatch.setattr(rft, "fine_tune", lambda corpus, *_, options: taught.append((len(corpus), options)))
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in RESULTS))
    DatasetDict({"train": Dataset.from_list(PROMPTS)}).save_to_disk(tmp_path / "prompts")
    argv = ["--results", str(tmp_path / "rollouts.jsonl"), "--prompts", str(tmp_path), "--submission", "code"]
    rft.main([*argv, "--output_dir", str(tmp_path / "run"), "--chat_template_kwargs", '{"brief": true}', *QUICK])
    assert taught == [(4, DialogueOptions("code", {"brief": True}))]
