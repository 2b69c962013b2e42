"""Every configuration file is one that its recipe, or accelerate, takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from trl import GRPOConfig, ModelConfig, SFTConfig

from pkb_gym.training import grpo
from pkb_gym.training.evaluate_policy import EvaluationArguments
from pkb_gym.training.grpo import GrpoArguments
from pkb_gym.training.inputs.arguments import parse_arguments
from pkb_gym.training.rft import RftArguments
from pkb_gym.training.sft import SftArguments
from pkb_gym.training.smoke import CONFIGS

RECIPES = {
    "sft": ((SftArguments, SFTConfig, ModelConfig), ["--corpus", "data"]),
    "grpo": ((GrpoArguments, GRPOConfig, ModelConfig), ["--prompts", "data"]),
    "rft": ((RftArguments, SFTConfig, ModelConfig), ["--results", "rollouts.jsonl", "--prompts", "data"]),
    "evaluate": ((EvaluationArguments, ModelConfig), ["--prompts", "data", "--output", "out"]),
}
OF_RECIPES = sorted(CONFIGS.glob("*.yaml"))
OF_ACCELERATE = sorted((CONFIGS / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", OF_RECIPES, ids=lambda path: path.stem)
def test_a_recipe_takes_its_configuration(path, tmp_path):
    kinds, needed = RECIPES[re.split("[_.]", path.name)[0]]
    argv = ["--config", str(path), *needed]
    if len(kinds) == 3:  # this machine may have no GPU for the trainers' bfloat16
        argv += ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    filled = parse_arguments(kinds, argv, prog=path.stem)
    if isinstance(filled[0], GrpoArguments):
        grpo.check(filled[0], filled[1])
        assert filled[1].generation_batch_size % filled[1].num_generations == 0


@pytest.mark.parametrize("path", OF_ACCELERATE, ids=lambda path: path.stem)
def test_accelerate_takes_its_configuration(path):
    config = load_config_from_file(str(path))
    assert config.num_processes >= 1 and isinstance(config.distributed_type, DistributedType)
    assert (config.fsdp_config or {}).get("fsdp_version") == (2 if path.stem.startswith("fsdp2") else None)
    assert (config.deepspeed_config or {}).get("zero_stage") == (3 if path.stem.startswith("zero3") else None)


def test_there_are_configurations_for_what_the_docs_promise():
    recipes = {path.stem for path in OF_RECIPES}
    assert {"sft_cpu_smoke", "grpo_cpu_smoke", "evaluate_cpu_smoke", "sft_scratch", "grpo_scratch"} <= recipes
    assert {
        f"{recipe}_{kind}" for recipe in ("sft", "grpo") for kind in ("one_gpu", "4_gpus", "8_gpus", "lora")
    } <= recipes
    assert {"grpo_vllm_colocate", "grpo_vllm_lora", "grpo_vllm_server", "rft_one_gpu", "evaluate"} <= recipes
    assert {path.stem for path in OF_ACCELERATE} == {"cpu", "one_gpu", "ddp_4", "fsdp2_8", "fsdp2_2x8", "zero3_8"}


def test_docs_and_recipes_name_files_that_exist():
    root = CONFIGS.resolve().parents[1]
    texts = [root / "docs" / "training.md", *(root / "training").glob("*.py")]
    named = {name for text in texts for name in re.findall(r"training/configs/[\w/]+\.yaml", text.read_text())}
    assert named and all(Path(root / name).is_file() for name in named)


STARTED_WITH = {"grpo_one_gpu": 1, "grpo_4_gpus": 4, "grpo_8_gpus": 4, "grpo_2x8_gpus": 16}
"""Processes of the commands in docs/training.md."""


def test_the_page_counts_the_evaluations_of_the_configurations():
    page = (CONFIGS.resolve().parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    sentence = page.split("The configurations for whole models")[1].split("\n\n")[0]
    assert "500 steps of 4 turns" in sentence
    found = {name: int(most) for name, most in re.findall(r"`(grpo_\w+)` (\d+)", sentence)}
    assert set(found) == set(STARTED_WITH)
    for name, processes in STARTED_WITH.items():
        config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
        assert (config["max_steps"], config["max_turns"]) == (500, 4)
        episodes = processes * config["per_device_train_batch_size"] * config["gradient_accumulation_steps"]
        assert found[name] == episodes * config["max_turns"]
