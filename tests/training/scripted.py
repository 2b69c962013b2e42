"""Policies with scripted replies in the place of generation, and everything that a run of GRPO needs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, ModelConfig

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.grpo import GrpoArguments, train
from pkb_gym.training.learner.trainer import KernelGRPOTrainer
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.scratch_model import Preset, make_model, train_tokenizer

TINY = Preset(1024, 48, width=32, layers=2, heads=2, key_value_heads=1, feed_forward=64, context=4096)

FAST = LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=10))
SLOW = LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=1))
BROKEN = LadderThenPerformance()(failed("compile_error"))

NO_THOUGHT = "<think>\n\n</think>\n\n"


def submit(source: str) -> str:
    """A message that submits a source with the tool."""
    call = json.dumps({"name": "submit", "arguments": {"source": source}})
    return f"{NO_THOUGHT}<tool_call>\n{call}\n</tool_call><|im_end|>"


def say(text: str) -> str:
    """A message that calls no tool."""
    return f"{NO_THOUGHT}{text}<|im_end|>"


def write_tiny_policy(corpus: Dataset, folder: Path) -> Path:
    """A Qwen3 of two layers, with random weights, and its tokenizer."""
    tokenizer = train_tokenizer(corpus, TINY)
    tokenizer.save_pretrained(folder)
    make_model(TINY, tokenizer, seed=0).save_pretrained(folder)
    return folder


def row(problem: str = "AllReduce", seed: int = 7, **columns: Any) -> dict[str, Any]:
    """A row of the prompts."""
    return {
        "problem": problem,
        "language": "cpp",
        "device": "cpu",
        "world_size": 2,
        "size": "tiny",
        "dtype": "bfloat16",
        "seed": seed,
        "style": "full",
        "prompt": [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": f"{problem}."}],
        **columns,
    }


def script_generation(script: Callable[[str], str]) -> Callable[..., Any]:
    """In place of `GRPOTrainer._generate_single_turn`: replies by a script, which gets all text so far."""

    @functools.wraps(GRPOTrainer._generate_single_turn)  # with its signature, which the trainer looks at
    def generate(self: GRPOTrainer, prompt_ids: list[list[int]], *_: object, **__: object) -> Any:
        texts = [script(self._tokenizer.decode(ids)) for ids in prompt_ids]
        return [self._tokenizer(text)["input_ids"] for text in texts], None

    return generate


def follow(monkeypatch, script: Callable[[str], str]) -> None:
    """Has every policy reply by a script, which gets all text so far and returns the next message."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", script_generation(script))


def lines(*messages: str) -> Callable[[str], str]:
    """A script of these messages, one after another."""
    rest = iter(messages)
    return lambda _: next(rest)


def config(folder: Path, **changes: Any) -> GRPOConfig:
    """Quick, on the CPU, without anything that moves the policy but advantages."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 512,
        "max_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "weight_decay": 0.0,
    }
    return GRPOConfig(**{**defaults, **changes})


def run(
    policy: Path,
    evaluator: Evaluator,
    grpo_config: GRPOConfig,
    rows: list[dict[str, Any]] | None = None,
    trainer_class: type[KernelGRPOTrainer] = KernelGRPOTrainer,
    schedule: EvaluationSchedule | None = None,
    model_config: ModelConfig | None = None,
    **arguments: Any,
) -> KernelGRPOTrainer:
    """Trains a policy as `grpo.py` does, with an evaluator of the test's."""
    host = HostGroup()
    return train(
        Dataset.from_list(rows or [row()]),
        GrpoArguments(prompts="", **arguments),
        grpo_config,
        model_config or ModelConfig(model_name_or_path=str(policy)),
        schedule or EvaluationSchedule(evaluator, host),
        host,
        trainer_class,
    )


def tokenizer_of(policy: Path) -> Any:
    return AutoTokenizer.from_pretrained(policy)


class Watched(KernelGRPOTrainer):
    """Keeps what it learns from, and the gradient that this leaves."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict] = []

    def _compute_loss(self, model, inputs):
        self.batches.append(inputs)
        return super()._compute_loss(model, inputs)


def weights(policy: Path) -> dict[str, torch.Tensor]:
    return load_file(policy / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
