"""GRPO with TRL: the model calls the tool `submit`, and is paid the value of its best submission.

`KernelTool` has `get_reward`, which TRL adds to the reward functions that it is given. A function of yours that takes
its number from the environments would count twice, so that it takes `SubmissionTool`, which is the same without.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.envs import KernelTool, SubmissionTool


def few_submissions(environments: Sequence[SubmissionTool], **_: object) -> list[float | None]:
    """A reward function of your own: the value of the best submission, less a little for each."""
    return [
        None if tool.episode_value is None else tool.episode_value - 0.01 * len(tool.submissions)
        for tool in environments
    ]


def make_trainer(
    model: str, output: str, *, own_reward: bool = False, evaluator: str | Evaluator = "local"
) -> GRPOTrainer:
    """A trainer of one step on AllReduce."""
    tool = SubmissionTool if own_reward else KernelTool
    factory = partial(tool, ["AllReduce"], max_turns=2, device="cpu", world_size=2, evaluator=evaluator)
    rows = [{"prompt": [{"role": "user", "content": "Write a kernel."}], "problem": "AllReduce", "seed": 7}] * 4
    settings = GRPOConfig(
        output_dir=output, max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=64,
        report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[few_submissions] if own_reward else None,
        environment_factory=factory,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="path or name of a chat model that calls tools")
    parser.add_argument("--output", default="runs/trl_tool")
    parser.add_argument("--own-reward", action="store_true")
    args = parser.parse_args()
    make_trainer(args.model, args.output, own_reward=args.own_reward).train()
