"""One rank of runs whose rollouts vLLM generates.

WORLD_SIZE=2 python -m tests.training.rank_processes tests.training.vllm_rank NAME POLICY OUTPUT URL GROUP_PORT [URL]
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState
from trl import ModelConfig
from trl.generation.vllm_client import VLLMClient

from pkb_gym.training.evaluation.owner import EvaluationSchedule, start_evaluation
from pkb_gym.training.processes.host_group import HostGroup
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.numbered_tasks import TURNS, task_row
from tests.training.scripted import Watched, config, run
from tests.waiting import PATIENCE_S

TENSOR_PARALLEL = {
    "vllm_mode": "colocate",
    "vllm_tensor_parallel_size": 2,
    "vllm_max_model_length": 4096,
    "vllm_enable_sleep_mode": True,
}
SERVER = {"vllm_mode": "server"}
ADAPTER = {"use_peft": True, "lora_r": 4, "lora_alpha": 64, "lora_target_modules": ["q_proj", "v_proj"]}


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


def learn(policy: Path, output: Path, url: str, group_port: int, evaluation_url: str | None, **changes: Any) -> Watched:
    """A run on two tasks, one of each rank where there are two."""
    group = len(TURNS[0])
    settings = config(
        output,
        **{
            "use_vllm": True,
            "vllm_server_base_url": url,
            "vllm_group_port": group_port,
            "num_generations": group,
            "per_device_train_batch_size": group,
            "max_completion_length": 1500,
            "max_steps": 2,
            **{name: value for name, value in changes.items() if name not in ADAPTER},
        },
    )
    host = HostGroup()
    evaluator = FakeEvaluator()
    schedule = (
        EvaluationSchedule(evaluator, host)
        if evaluation_url is None
        else start_evaluation("dedicated", host, url=evaluation_url, deadline_s=PATIENCE_S)
    )
    model = {name: value for name, value in changes.items() if name in ADAPTER}
    with closing(schedule):
        return run(
            policy,
            evaluator,
            settings,
            [task_row(1), task_row(2)],
            Watched,
            schedule,
            model_config=ModelConfig(model_name_or_path=str(policy), **model),
            max_turns=3,
        )


def main(name: str, policy: Path, output: Path, url: str, group_port: int, evaluation_url: str | None = None) -> None:
    without_a_gpu()
    rank = PartialState(cpu=True).process_index
    start = partial(learn, policy, url=url, group_port=group_port, evaluation_url=evaluation_url)
    report: dict[str, Any] = {}
    if name == "resumed_adapter":
        every = {**SERVER, **ADAPTER, "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
        every["vllm_importance_sampling_correction"] = False  # the script's log-probabilities are not the policy's
        report["whole"] = start(output=output / "whole", **every).state.log_history
        begin = str(output / "whole" / "checkpoint-2")
        report["resumed"] = start(output=output / "resumed", resume_from_checkpoint=begin, **every).state.log_history
    else:
        trainer = start(output=output / name, **{"server": SERVER, "tensor_parallel": TENSOR_PARALLEL}[name])
        report["rollouts"], report["context"] = texts(trainer), trainer._player._limits.context
        if name == "tensor_parallel":
            report["requests"] = trainer.vllm_generation.llm.requests
    (output / f"{name}_{rank}.json").write_text(json.dumps(report, default=str))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), *sys.argv[6:])
