"""Generation by transformers from weights that FSDP2 shards is refused for models of some size."""

from __future__ import annotations

import pytest
from trl import GRPOConfig, ModelConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.grpo import check_sharded_generation

LARGE, SMALL = "Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"


@pytest.fixture
def config(tmp_path):
    return GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)


def test_large_shards_are_refused_before_they_are_loaded(monkeypatch, config):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(ConfigError, match=r"7\.6 billion parameters are too many .* give --use_vllm"):
        check_sharded_generation(ModelConfig(model_name_or_path=LARGE), config)
    check_sharded_generation(ModelConfig(model_name_or_path=SMALL), config)
    config.use_vllm = True
    check_sharded_generation(ModelConfig(model_name_or_path=LARGE), config)


def test_other_ways_to_share_a_model_are_not(monkeypatch, config):
    for name in ("ACCELERATE_USE_FSDP", "FSDP_VERSION"):
        monkeypatch.delenv(name, raising=False)
    check_sharded_generation(ModelConfig(model_name_or_path=LARGE), config)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    check_sharded_generation(ModelConfig(model_name_or_path=LARGE), config)
