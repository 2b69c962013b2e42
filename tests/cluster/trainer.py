"""One of two trainer processes of `grpo.py --evaluation ray`, whose policy says what a script says.

    RANK=0 WORLD_SIZE=2 ... python -m tests.cluster.trainer POLICY PROMPTS OUTPUT ADDRESS GO

Two steps of two rollouts a process. In the first step, the sources of each process wait for the file GO.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from trl import GRPOTrainer

from pkb_gym.training import grpo
from tests.training.scripted import say, script_generation, submit

STEPS = 2
OPTIONS = (
    *("--use_cpu", "true", "--bf16", "false", "--gradient_checkpointing", "false", "--report_to", "none"),
    *("--disable_tqdm", "true", "--logging_steps", "1", "--save_strategy", "no", "--max_steps", str(STEPS)),
    *("--per_device_train_batch_size", "2", "--num_generations", "4", "--max_completion_length", "1024"),
    *("--max_turns", "2", "--learning_rate", "1e-3"),
)


def main(policy: str, prompts: str, output: str, address: str, go: str) -> None:
    rank = int(os.environ["RANK"])
    first = [submit(f"speedup {speedup + 10 * rank}\nwait {go}") for speedup in (1, 2)]
    second = [submit(f"speedup {speedup + 10 * rank}") for speedup in (3, 4)]
    messages = iter([*first, say("Bye."), say("Bye."), *second, say("Bye."), say("Bye.")])
    GRPOTrainer._generate_single_turn = script_generation(lambda _: next(messages))
    paths = ("--model_name_or_path", policy, "--prompts", prompts, "--output_dir", output)
    grpo.main([*paths, "--evaluation", "ray", "--evaluation_url", address, *OPTIONS])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
