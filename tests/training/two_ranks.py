"""One of two ranks that learn together, with other numbers of turns than its peer's rollouts; started by `test_ranks`.

WORLD_SIZE=2 python -m tests.training.rank_processes tests.training.two_ranks POLICY OUTPUT
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.learner.policy_backend import PolicyBackend
from pkb_gym.training.processes.host_group import HostGroup
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import Watched, config, row, run, say, script_generation, submit
from tests.waiting import PATIENCE_S

BEGINNINGS = {
    0: [submit("speedup 1"), submit("compile_error")],
    1: [say("I cannot."), say("Nor I.")],
}
"""Rank -> the first messages of its two rollouts: of the first rank's one has two turns and one three; the other's have
none."""

NEXT = {
    "speedup 1": submit("speedup 10"),
    "compile_error": submit("speedup 4"),
    "speedup 4": submit("speedup 1"),
}
"""Source -> the message after its answer, on whichever rank it is generated."""


class Script:
    """The messages of one rank in a run of so many batches."""

    def __init__(self, rank: int, batches: int) -> None:
        self.beginnings = BEGINNINGS[rank] * batches

    def __call__(self, before: str) -> str:
        submitted = re.findall(r'"source": "([^"]+)"', before)
        return NEXT[submitted[-1]] if submitted else self.beginnings.pop(0)


class Gated(FakeEvaluator):
    """Judges nothing while it is shut, and notes what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = threading.Event()
        self.notes: list[str] = []

    def pause(self, timeout_s):
        self.is_open.clear()
        self.notes.append("shut")

    def resume(self):
        self.is_open.set()
        self.notes.append("open")

    def evaluate(self, problem, source, config, progress=None):
        assert self.is_open.wait(PATIENCE_S)
        self.notes.append(source)
        return super().evaluate(problem, source, config, progress)


def generations(policy: Path, output: Path, rank: int) -> tuple[int, list[int]]:
    """How often this rank generates in such a run, and the lengths of its completions."""
    calls = []
    generate = script_generation(Script(rank, batches=1))

    @functools.wraps(generate)
    def counting(self, prompt_ids, *rest, **named):
        calls.append(len(prompt_ids))
        return generate(self, prompt_ids, *rest, **named)

    GRPOTrainer._generate_single_turn = counting
    settings = config(output, num_generations=4, use_cpu=True)
    with patch.object(PolicyBackend, "needs_all_ranks", True):  # as it is where ranks share the weights
        trainer = run(policy, FakeEvaluator(), settings, [row()], max_turns=3, trainer_class=Watched)
    return len(calls), trainer.batches[0]["completion_mask"].sum(dim=1).tolist()


def share_out_weights() -> None:
    """From now on, models are sharded (FSDP2) as `accelerate/fsdp2_8.yaml` asks; accelerate does so on GPUs alone."""
    os.environ |= {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    }
    begin = AcceleratorState.__init__

    def shard_on_processors(self, *args, fsdp_plugin=None, **named):
        begin(self, *args, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None and self.distributed_type is DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState._reset_state()
    AcceleratorState.__init__ = shard_on_processors


def learn(policy: Path, output: Path, rank: int, evaluator: Gated) -> Watched:
    """Two steps of such a run; the policy is saved at the end."""
    GRPOTrainer._generate_single_turn = script_generation(Script(rank, batches=2))
    settings = config(output, num_generations=4, max_steps=2, use_cpu=True)
    schedule = EvaluationSchedule(evaluator, HostGroup(), pausable=evaluator)
    trainer = run(policy, evaluator, settings, [row()], max_turns=3, trainer_class=Watched, schedule=schedule)
    schedule.close()
    trainer.save_model()
    return trainer


def learn_ahead(policy: Path, output: Path, rank: int) -> dict[str, object]:
    """Three steps, of which the second and the third learn from a batch that was generated a step before."""
    script = Script(rank, batches=2)
    GRPOTrainer._generate_single_turn = script_generation(script)
    settings = config(output, num_generations=4, max_steps=3, use_cpu=True)
    options = {"max_turns": 3, "generate_ahead": True, "drop_uniform_groups": True}
    trainer = run(policy, FakeEvaluator(), settings, [row()], trainer_class=Watched, **options)
    steps = [line for line in trainer.state.log_history if "loss" in line]
    return {
        "weights": sum(float(parameter.double().sum()) for parameter in trainer.model.parameters()),
        "ages": [line["updates_since_generation"] for line in steps],
        "rewards": [line["reward"] for line in steps],
        "tokens": [int(batch["num_items_in_batch"]) for batch in trainer.batches],
        "own": [int((batch["completion_mask"] * batch["tool_mask"]).sum()) for batch in trainer.batches],
        "unused": len(script.beginnings),
    }


def learn_trimmed(policy: Path, output: Path, rank: int) -> dict[str, object]:
    """One step whose contexts lack earlier reasoning, so that a rollout of three turns has three sequences."""
    script = Script(rank, batches=1)
    GRPOTrainer._generate_single_turn = script_generation(lambda before: script(before).replace("\n\n", "\nWhy?\n", 1))
    settings = config(output, num_generations=4, use_cpu=True)
    options = {"max_turns": 3, "trim_reasoning": True}
    trainer = run(policy, FakeEvaluator(), settings, [row()], trainer_class=Watched, **options)
    (batch,) = trainer.batches
    return {
        "weights": sum(float(parameter.double().sum()) for parameter in trainer.model.parameters()),
        "reward": trainer.state.log_history[0]["reward"],
        "sequences": len(batch["completion_ids"]),
        "tokens": int(batch["num_items_in_batch"]),
        "own": int((batch["completion_mask"] * batch["tool_mask"]).sum()),
        "advantages": sorted({round(value, 6) for value in batch["advantages"].flatten().tolist()} - {0.0}),
    }


def main(policy: Path, output: Path) -> None:
    rank = PartialState(cpu=True).process_index
    evaluator = Gated()
    trainer = learn(policy, output / "whole", rank, evaluator)
    batch = trainer.batches[0]
    report = {
        "advantages": [
            sorted({round(value, 6) for value in advantages[assistant_mask.bool()].tolist()})
            for advantages, assistant_mask in zip(
                batch["advantages"], batch["completion_mask"] * batch["tool_mask"], strict=True
            )
        ],
        "notes": evaluator.notes,
        "weights": sum(float(parameter.double().sum()) for parameter in trainer.model.parameters()),
        "logged": trainer.state.log_history[0],
        "lengths": batch["completion_mask"].sum(dim=1).tolist(),
        "together": generations(policy, output / "together", rank),
        "ahead": learn_ahead(policy, output / "ahead", rank),
        "trimmed": learn_trimmed(policy, output / "trimmed", rank),
    }
    share_out_weights()
    sharded = learn(policy, output / "sharded", rank, Gated())
    report["sharded"] = {
        "own_parts": [type(parameter).__name__ for parameter in sharded.model.parameters()],
        "losses": [line["loss"] for line in sharded.state.log_history if "loss" in line],
    }
    report["losses"] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    (output / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
