"""One rank of a run whose rollouts vLLM generates; started by `vllm_ranks`.

RANK=0 WORLD_SIZE=2 ... python -m tests.training.vllm_rank MODE POLICY OUTPUT URL GROUP_PORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState
from trl.generation.vllm_client import VLLMClient

from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.numbered_tasks import TURNS, task_row
from tests.training.scripted import Watched, config, run

OPTIONS: dict[str, dict[str, Any]] = {
    "server": {"vllm_mode": "server"},
    "tensor_parallel": {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 2, "vllm_max_model_length": 4096},
}


def without_a_gpu() -> None:
    """Passes TRL's demand for a CUDA device: the engine that weights are sent with is a stand-in, and needs none."""
    init = VLLMClient.init_communicator
    VLLMClient.init_communicator = lambda self, device: init(self, "cuda")


def texts(trainer: Watched) -> list[dict[str, Any]]:
    """Prompt, completion and log-probabilities of each rollout that this rank learnt from."""
    found = []
    for batch in trainer.batches:
        own = batch["completion_mask"] * batch["tool_mask"]
        for row in range(len(own)):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
            logprobs = batch["sampling_per_token_logps"][row][own[row].bool()]
            found.append(
                {
                    "prompt": trainer._tokenizer.decode(prompt),
                    "completion": trainer._tokenizer.decode(completion),
                    "logprobs": sorted(set(logprobs.tolist())),
                }
            )
    return found


def main(mode: str, policy: Path, output: Path, url: str, group_port: int) -> None:
    without_a_gpu()
    rank = PartialState(cpu=True).process_index
    group = len(TURNS[0])
    settings = config(
        output / mode,
        use_vllm=True,
        vllm_server_base_url=url,
        vllm_group_port=group_port,
        num_generations=group,
        per_device_train_batch_size=group,
        max_completion_length=1500,
        max_steps=2,
        **OPTIONS[mode],
    )
    trainer = run(policy, FakeEvaluator(), settings, [task_row(1), task_row(2)], max_turns=3, trainer_class=Watched)
    report: dict[str, Any] = {"rollouts": texts(trainer), "log": trainer.state.log_history}
    if mode == "tensor_parallel":
        report["requests"] = trainer.vllm_generation.llm.requests
    (output / f"{mode}_{rank}.json").write_text(json.dumps(report, default=str))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
