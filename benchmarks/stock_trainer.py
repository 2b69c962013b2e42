"""Seconds of one step of TRL's `GRPOTrainer` as it is, on real kernels: rollouts judged one by one, and side by side.

    python -m benchmarks.stock_trainer --rollouts 8

The policy has a million parameters, and submits a right kernel in C++ each time, which differs by a comment.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.evaluator_registry import find_evaluator
from pkb_gym.envs.trl import KernelTool
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.training.kernel_rollouts import KernelRollouts
from pkb_gym.training.scratch_model import write_scratch_model

PROBLEM = "AllReduce"
REQUEST: dict[str, Any] = {"device": "cpu", "world_size": 2, "size": "tiny"}


PROMPT = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": f"{PROBLEM}."}]


def main() -> None:
    """Prints a line of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of the step (default: %(default)s)")
    count = parser.parse_args().rollouts
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    rows = [{"problem": PROBLEM, "seed": 0, "prompt": PROMPT, "language": "cpp", **REQUEST}]
    evaluator = find_evaluator("local")
    evaluator.evaluate(find_problem(PROBLEM), _source(0), EvalConfig(language="cpp", **REQUEST))  # starts its processes
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        corpus = Dataset.from_list([{"messages": [*PROMPT, {"role": "assistant", "content": _source(0)}]}])
        write_scratch_model(corpus, policy, "smoke", seed=0)
        rollouts = KernelRollouts(rows, evaluator, max_turns=1)
        tool = partial(KernelTool, [PROBLEM], 1, language="cpp", **REQUEST)
        ways: dict[str, dict[str, Any]] = {
            "one by one (environment_factory)": {"environment_factory": tool},
            "side by side (rollout_func)": {"rollout_func": rollouts.play, "reward_funcs": rollouts.reward},
        }
        numbers = itertools.count(1)
        for way, options in ways.items():
            with patch.object(GRPOTrainer, "_generate_single_turn", _scripted(numbers)):
                trainer = GRPOTrainer(
                    str(policy),
                    args=_config(folder, count),
                    train_dataset=Dataset.from_list(rows),
                    processing_class=AutoTokenizer.from_pretrained(policy),
                    **options,
                )
                began = time.monotonic()
                trainer.train()
            seconds, (first, *_) = round(time.monotonic() - began, 1), trainer.state.log_history
            print(json.dumps({"way": way, "rollouts": count, "s": seconds, "reward": first["reward"]}), flush=True)
        rollouts.close()


def _source(number: int) -> str:
    return f"{expert_source(find_problem(PROBLEM))}// {number}\n"


def _scripted(numbers: Iterator[int]) -> Callable[..., object]:
    """In place of TRL's generation: each first reply submits a further kernel, and the next one closes."""

    @functools.wraps(GRPOTrainer._generate_single_turn)  # with its signature, which `trl_names` looks at
    def generate(trainer: GRPOTrainer, prompt_ids: list[list[int]], *_: object, **__: object) -> tuple[object, None]:
        tokenizer: Any = trainer.processing_class

        def reply(ids: list[int]) -> str:
            if "<tool_response>" in tokenizer.decode(ids):
                return "Bye.<|im_end|>"
            call = json.dumps({"name": "submit", "arguments": {"source": _source(next(numbers))}})
            return f"<tool_call>\n{call}\n</tool_call><|im_end|>"

        return [tokenizer(reply(ids))["input_ids"] for ids in prompt_ids], None

    return generate


def _config(folder: str, count: int) -> GRPOConfig:
    return GRPOConfig(
        folder,
        max_steps=1,
        per_device_train_batch_size=count,
        num_generations=count,
        max_completion_length=3000,
        max_tool_calling_iterations=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
