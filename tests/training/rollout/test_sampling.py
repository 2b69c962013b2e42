"""Replies of a sampler depend on sequences and seed, and on nothing else."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.training.rollout import sampling
from pkb_gym.training.rollout.sampling import SamplingConfig, TransformersSampler, open_sampler


@pytest.fixture(scope="module")
def tokenizer(scratch_model):
    return AutoTokenizer.from_pretrained(scratch_model)


def sampler(scratch_model, tokenizer, **config) -> TransformersSampler:
    return open_sampler(
        "transformers", ModelConfig(model_name_or_path=str(scratch_model)), tokenizer, SamplingConfig(**config)
    )


def test_the_seed_decides(scratch_model, tokenizer):
    sequences, budgets = [[5, 6, 7], [8, 9]], [8, 8]
    one = sampler(scratch_model, tokenizer)
    replies = one.sample(sequences, budgets, seed=1)
    assert one.sample(sequences, budgets, seed=1) == replies
    assert one.sample(sequences, budgets, seed=2) != replies


def test_neither_padding_nor_batches_change_the_likeliest_reply(scratch_model, tokenizer):
    sequences = [[5], [6, 7, 8, 9, 10], [11, 12, 13]]
    together = sampler(scratch_model, tokenizer, temperature=0).sample(sequences, [6, 6, 6], seed=0)
    alone = [
        sampler(scratch_model, tokenizer, temperature=0).sample([sequence], [6], seed=0)[0] for sequence in sequences
    ]
    in_two = sampler(scratch_model, tokenizer, temperature=0, batch_size=2).sample(sequences, [6, 6, 6], seed=0)
    assert together == alone == in_two


def test_continuous_batching_gives_the_likeliest_replies_too(scratch_model, tokenizer):
    sequences, budgets = [[5], [6, 7, 8, 9, 10], [11, 12, 13]], [6, 2, 4]
    usual = sampler(scratch_model, tokenizer, temperature=0).sample(sequences, budgets, seed=0)
    model = ModelConfig(model_name_or_path=str(scratch_model))
    continuous = open_sampler("continuous", model, tokenizer, SamplingConfig(temperature=0))
    assert continuous.sample(sequences, budgets, seed=0) == usual
    short = open_sampler("continuous", model, tokenizer, SamplingConfig(temperature=0))
    short._model.generate_batch = lambda inputs, **_: {}
    with pytest.raises(InfrastructureError, match="returned 0 of 3 replies"):
        short.sample(sequences, budgets, seed=0)


@pytest.mark.parametrize("name", ["page_size", "block_size"])
def test_caches_of_continuous_batching_hold_all_sequences(scratch_model, tokenizer, monkeypatch, name):
    """Up to transformers 5.17 a page is called a block, and nothing was sampled without a GPU."""
    monkeypatch.setattr(sampling, "ContinuousBatchingConfig", lambda seed: SimpleNamespace(**{name: 4}))
    continuous = open_sampler("continuous", ModelConfig(str(scratch_model)), tokenizer, SamplingConfig())
    assert continuous._cache([[1, 2, 3], [1]], budget=6, seed=0).num_blocks == 4 + 3


def test_a_reply_ends_with_its_turn_or_its_budget(scratch_model, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(scratch_model)
    end = tokenizer.eos_token_id

    read = []

    def generate(input_ids, attention_mask, **_: object):
        read.append((input_ids.tolist(), attention_mask.tolist()))
        new = torch.tensor([[1, 2, end, 0, 0], [1, 2, 3, 4, 5], [end, 1, 1, 1, 1]])
        return torch.cat([input_ids, new[: len(input_ids)]], dim=1)

    model.generate = generate
    found = TransformersSampler(model, tokenizer, SamplingConfig()).sample([[7, 8], [7], [7]], [5, 4, 5], seed=0)
    assert found == [[1, 2, end], [1, 2, 3, 4], [end]]
    pad = tokenizer.pad_token_id
    assert read == [([[7, 8], [pad, 7], [pad, 7]], [[1, 1], [0, 1], [0, 1]])]


def test_vllm_is_asked_for_the_same(monkeypatch, scratch_model, tokenizer):
    """Against a stand-in: vLLM itself runs on GPUs alone."""
    requested = []

    class LLM:
        def __init__(self, **arguments: object) -> None:
            requested.append(arguments)
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=512))

        def generate(self, prompts, params, use_tqdm):
            requested.append((prompts, [vars(one) for one in params]))
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(1, 2))]) for _ in prompts]

    fake = SimpleNamespace(LLM=LLM, SamplingParams=SimpleNamespace)
    model = ModelConfig(model_name_or_path=str(scratch_model))
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        open_sampler("vllm", model, tokenizer, SamplingConfig())
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    one = open_sampler("vllm", model, tokenizer, SamplingConfig(temperature=0.7, vllm_memory=0.5))
    assert one.sample([[3], [4, 5]], [8, 9], seed=10) == [[1, 2], [1, 2]]
    assert requested[0]["gpu_memory_utilization"] == 0.5 and one.context == 512
    prompts, params = requested[1]
    assert prompts == [{"prompt_token_ids": [3]}, {"prompt_token_ids": [4, 5]}]
    assert [(one["seed"], one["max_tokens"], one["temperature"]) for one in params] == [(10, 8, 0.7), (11, 9, 0.7)]
