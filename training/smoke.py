"""The whole chain on the CPU, in minutes: export, SFT of a new model, GRPO over two turns, evaluation of the result.

    python -m pkb_gym.training.smoke --output runs/smoke

Every kernel is really compiled and run. The model has a million parameters and learns a handful of kernels by heart: it
shows that the parts fit together, and is no evidence of what a model can learn.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pkb_gym.cli import main as pkb
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.training import evaluate_policy, grpo, sft
from pkb_gym.training.inputs.arguments import TRAINER_STATE, parse_arguments, run_recipe
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.results.archive import ROLLOUTS
from pkb_gym.training.results.policy_summary import PolicySummary

CONFIGS = Path(__file__).parent / "configs"
DATA = ["--problems", "AllGather", "Scatter", "--sizes", "tiny", "--world-size", "2", "--style", "brief"]
"""Two problems whose kernels are short."""
CORPUS = ["--variants-per-problem", "3", "--repairs-per-problem", "1", "--jobs", "2", "--timing-budget", "0.1"]


@dataclass
class SmokeArguments:
    """Arguments of this recipe."""

    output: str = field(default="runs/smoke", metadata={"help": "Folder for everything that it makes."})


@dataclass(frozen=True)
class SmokeReport:
    """The result of the chain.

    Attributes:
        sft_losses: Logged losses of SFT.
        grpo_losses: Losses of each GRPO step.
        submissions: Lines of `rollouts.jsonl`.
        summary: Summary of the policy at the end, on held-out prompts.
        durations_s: Duration of each link, in seconds.
    """

    sft_losses: list[float]
    grpo_losses: list[float]
    submissions: list[Row]
    summary: PolicySummary
    durations_s: dict[str, float]

    @property
    def faults(self) -> list[str]:
        """The failed expectations, in words; empty where all is well."""
        judged = [row for row in self.submissions if row["reward"] is not None]
        checks = {
            "the loss of SFT did not fall below a tenth": self.sft_losses[-1] < 0.1 * self.sft_losses[0],
            "a loss of GRPO is not finite": all(map(math.isfinite, self.grpo_losses)),
            "GRPO made no step": len(self.grpo_losses) > 0,
            "nothing that the policy submitted was judged": len(judged) > 0,
            "nothing that the policy submitted was right": any(row["is_right"] for row in judged),
            "the policy was not evaluated": self.summary.total.samples > 0,
            "the evaluator failed": self.summary.total.unjudged == 0 and len(judged) == len(self.submissions),
        }
        return [words for words, holds in checks.items() if not holds]


def main(argv: list[str] | None = None) -> None:
    """Runs the chain and prints the result.

    Raises:
        InfrastructureError: something went otherwise than it should.
    """
    (args,) = parse_arguments((SmokeArguments,), argv, prog="smoke")
    report = run_chain(Path(args.output))
    print(f"loss of SFT from {report.sft_losses[0]:.2f} to {report.sft_losses[-1]:.3f}")
    right = sum(row["is_right"] for row in report.submissions)
    print(f"{len(report.submissions)} submissions in {len(report.grpo_losses)} steps of GRPO, {right} of them right")
    print(", ".join(f"{link} {duration_s:.0f} s" for link, duration_s in report.durations_s.items()))
    if report.faults:
        raise InfrastructureError("; ".join(report.faults))


def run_chain(folder: Path) -> SmokeReport:
    """Runs all links, one after another.

    Args:
        folder: Folder for all files.

    Raises:
        InfrastructureError: an export failed.
    """
    data, trained, tuned = folder / "data", folder / "sft", folder / "grpo"
    durations_s: dict[str, float] = {}

    @contextmanager
    def link(name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        durations_s[name] = time.monotonic() - began

    with one_thread():
        with link("export"):
            _export("prompts", "--out", str(data), *DATA, "--held-out", "1")
            _export("corpus", "--out", str(data), *DATA, *CORPUS)
        with link("sft"):
            sft.main([*_config("sft"), "--corpus", str(data), "--output_dir", str(trained)])
        with link("grpo"):
            policy = ["--model_name_or_path", str(trained)]
            grpo.main([*_config("grpo"), *policy, "--prompts", str(data), "--output_dir", str(tuned)])
        with link("evaluation"):
            policy = ["--model_name_or_path", str(tuned)]
            output = ["--output", str(tuned / "held_out")]
            summary = evaluate_policy.main([*_config("evaluate"), *policy, "--prompts", str(data), *output])
    return SmokeReport(_losses(trained), _losses(tuned), read_jsonl(tuned / ROLLOUTS), summary, durations_s)


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch compute on one core: a model this small gains nothing from more, and loses much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _export(*arguments: str) -> None:
    if status := pkb(["export", *arguments]):
        raise InfrastructureError(f"`pkb export {' '.join(arguments)}` ended with status {status}; see its error above")


def _config(recipe: str) -> list[str]:
    return ["--config", str(CONFIGS / f"{recipe}_cpu_smoke.yaml")]


def _losses(folder: Path) -> list[float]:
    history = json.loads((folder / TRAINER_STATE).read_bytes())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


if __name__ == "__main__":
    run_recipe(main)
