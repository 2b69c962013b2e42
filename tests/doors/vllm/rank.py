"""One of the trainer processes of the door, whose policy they begin with is trained first; started by `test_door`.

WORLD_SIZE=2 python -m tests.training.rank_processes tests.doors.vllm.rank UNTRAINED POLICY OUTPUT ADDRESS WEIGHTS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState

from tests.doors.vllm.policy import write_trained, write_untrained
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import config, row, run
from tests.waiting import until

START_S = 600.0
"""Deadline of the server in seconds, on processors that other tests use too."""


def prepare(untrained: str, policy: str, output: str, address: str, weights: str) -> None:
    """Writes the weights that the server begins with, then those of the trainers, and waits for the server."""
    unfinished = Path(untrained + ".part")
    write_untrained(unfinished)
    unfinished.rename(untrained)
    write_trained(Path(untrained), Path(policy))
    until(Path(address).exists, "there is no server", START_S)


def main(policy: Path, output: Path, url: str, weights: str) -> None:
    torch.set_num_threads(1)
    rank = PartialState(cpu=True).process_index
    settings = config(
        output,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        num_generations=8,
        per_device_train_batch_size=8,
        max_completion_length=800,
        max_steps=3,
        learning_rate=3e-4,
    )
    rows = [row(prompt=[{"role": "user", "content": "Task" * (1 + 3 * task)}], seed=task) for task in range(2)]
    trainer = run(policy, FakeEvaluator(), settings, rows, max_turns=3, vllm_weights_folder=weights)
    if rank == 0:
        (output / "log.json").write_text(json.dumps(trainer.state.log_history))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]).read_text(), sys.argv[5])
