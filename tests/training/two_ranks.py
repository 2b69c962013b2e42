"""One of two ranks that learn together, with other numbers of turns than its peer's rollouts; started by `test_ranks`.

RANK=0 WORLD_SIZE=2 ... python -m tests.training.two_ranks POLICY OUTPUT
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState
from trl import GRPOTrainer

from pkb_gym.training.evaluation_owner import Evaluation
from pkb_gym.training.host_group import HostGroup
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import config, row, run, say, script_generation, submit
from tests.training.test_grpo import Watched

SAID = {
    0: [submit("speedup 1"), submit("compile_error"), submit("speedup 10"), submit("speedup 4"), submit("speedup 1")],
    1: [say("I cannot."), say("Nor I.")],
}
"""Rank -> its messages: of the first rank's two rollouts one has two turns and one three; the other's have none."""


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
        assert self.is_open.wait(30)
        self.notes.append(source)
        return super().evaluate(problem, source, config, progress)


class Together(Watched):
    """Takes generation for a collective, as it is where ranks share the weights."""

    _generates_together = True


def generations(policy: Path, output: Path, rank: int) -> tuple[int, list[int]]:
    """How often this rank generates in such a run, and the lengths of its completions."""
    script = iter([*SAID[rank], *[say("Nothing that anyone asked for.")] * 9])
    calls = []
    generate = script_generation(lambda _: next(script))

    def counting(self, prompt_ids, *rest, **named):
        calls.append(len(prompt_ids))
        return generate(self, prompt_ids, *rest, **named)

    GRPOTrainer._generate_single_turn = counting
    settings = config(output, num_generations=4, use_cpu=True)
    trainer = run(policy, FakeEvaluator(), settings, [row()], max_turns=3, trainer_class=Together)
    return len(calls), trainer.batches[0]["completion_mask"].sum(dim=1).tolist()


def main(policy: Path, output: Path) -> None:
    settings = config(output, num_generations=4, max_steps=2, use_cpu=True)
    rank = PartialState().process_index
    script = iter(SAID[rank] * 2)
    GRPOTrainer._generate_single_turn = script_generation(lambda _: next(script))
    evaluator = Gated()
    host = HostGroup()
    evaluation = Evaluation(evaluator, host, gate=evaluator)
    trainer = run(policy, evaluator, settings, [row()], max_turns=3, trainer_class=Watched, evaluation=evaluation)
    evaluation.close()
    batch = trainer.batches[0]
    told = {
        "advantages": [
            sorted({round(value, 6) for value in advantages[said.bool()].tolist()})
            for advantages, said in zip(batch["advantages"], batch["completion_mask"] * batch["tool_mask"], strict=True)
        ],
        "notes": evaluator.notes,
        "weights": sum(float(parameter.double().sum()) for parameter in trainer.model.parameters()),
        "logged": trainer.state.log_history[0],
        "lengths": batch["completion_mask"].sum(dim=1).tolist(),
        "together": generations(policy, output / "together", rank),
    }
    (output / f"rank_{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
