"""One rank of the training loop of `benchmarks.colocated`; started by torchrun.

A rank generates, computes gradients and steps, again and again; in each reward phase rank 0 has all kernels judged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.colocated import Plan, judge_all
from benchmarks.common import make_parser
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.offload import GpuMemory
from pkb_gym.training.processes.phases import PhaseClock

VOCABULARY = 8192
BATCH, PROMPT, NEW_TOKENS = 8, 256, 64


@dataclass(frozen=True)
class Size:
    """The size of the model that is trained: large enough that its work would be noticed."""

    width: int
    layers: int


SIZES = {"cpu": Size(256, 4), "cuda": Size(1024, 16)}


def make_model(device: torch.device) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights."""
    size = SIZES[device.type]
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64,
        num_key_value_heads=size.width // 128,
        head_dim=64,
        intermediate_size=3 * size.width,
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Qwen3ForCausalLM(config)
    torch.nn.Module.to(model, device, dtype)
    return model


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator) -> None:
    """One step as GRPO makes it: sequences are generated, then learnt from."""
    prompts = torch.randint(VOCABULARY, (BATCH, PROMPT), device=accelerator.device)
    with torch.no_grad():
        policy = accelerator.unwrap_model(model)
        ids = policy.generate(prompts, max_new_tokens=NEW_TOKENS, do_sample=True, pad_token_id=0, eos_token_id=None)
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()


def main(plan_file: Path, output: Path) -> None:
    """Runs the loop; rank 0 writes what was measured."""
    plan = Plan.read(plan_file)
    accelerator = Accelerator(cpu=plan.device == "cpu")
    host = HostGroup()
    remote = RemoteEvaluator(plan.url, plan.token)
    schedule = EvaluationSchedule(remote, host, pausable=remote, pauses=host.rank == 0)
    made = make_model(accelerator.device)
    model, optimizer = accelerator.prepare(made, torch.optim.AdamW(made.parameters()))
    memory = GpuMemory(made, plan.offload)
    memory.optimizer = optimizer
    clock = PhaseClock(torch.cuda.synchronize if plan.device == "cuda" else lambda: None)
    measured = []
    for number in plan.rounds:
        with clock.phase("learning"):
            learn(model, optimizer, accelerator)
        with clock.phase("evaluation"), schedule.reward_phase(clock, memory):
            if host.rank == 0:
                measured += judge_all(remote, plan, number)
    if host.rank == 0:
        remote.resume()
        output.write_text(json.dumps({"measured": measured, "phases_s": clock.lap().phases_s}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = make_parser("colocated_rank", __doc__)
    parser.add_argument("plan", type=Path, help="written by benchmarks.colocated")
    parser.add_argument("output", type=Path, help="what rank 0 writes")
    arguments = parser.parse_args()
    main(arguments.plan, arguments.output)
