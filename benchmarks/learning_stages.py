"""The stages of a learning run: which recipe each one calls, and with which options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning_prompts import PRACTICE, RINGS
from benchmarks.learning_weights import BEGIN, judged_weights
from pkb_gym.training.learner.weight_difference import WEIGHTS


@dataclass(frozen=True)
class Stage:
    """One recipe.

    Attributes:
        name: Name of the stage and of its folder.
        arguments: Module and its options.
        limit_s: Longest time of one call, in seconds.
        total_s: Seconds of all calls together, after which the stage is finished; None where one call is enough.
        made: File in the stage's folder without which it is not finished.
    """

    name: str
    arguments: Sequence[str]
    limit_s: float
    total_s: float | None = None
    made: str = ""


def stages_of(args: argparse.Namespace) -> list[Stage]:
    """The stages in order.

    Args:
        args: Command line of `learning_run`.
    """
    runs = Path(args.runs)
    model, sft, rft = (str(runs / name) for name in ("model", "sft", "rft"))
    trained = str(judged_weights(runs / "grpo"))
    convert = ["pkb_gym.training.pretrained_model", "--gguf", str(args.gguf), "--output", model]

    def rings(name: str, policy: str, samples: int, limit_s: float, *more: str) -> Stage:
        return Stage(name, [*_evaluation(args, name, policy, samples), *more], limit_s, made="summary.json")

    return [
        Stage("model", [*convert, "--dtype", "float32"], 120, made="model.safetensors"),
        Stage("sft", _sft(args), 240, made="trainer_state.json"),
        Stage("grpo", _grpo(args), 600, total_s=args.grpo_s),
        rings("rings_sft", sft, args.samples, 450),
        rings("rings_grpo", trained, args.samples, 450),
        rings("rings_base", model, 1, 90, "--max_completion_length", str(args.completion // 2)),
        Stage("rft", _rft(args), 120, made="trainer_state.json"),
        rings("rings_rft", rft, args.samples, 450),
        *(
            rings(
                f"rings_{name}_at_{temperature:g}", policy, args.control_samples, 450, "--temperature", f"{temperature}"
            )
            for temperature in args.temperatures
            for name, policy in (("sft", sft), ("grpo", trained))
        ),
        *(
            Stage(f"rings_{name}", _control(args, name, agent), 450, made="summary.json")
            for name, agent in (("nearest", f"nearest:{args.corpus}"), ("evolve", "evolve"))
        ),
    ]


GENERATION = {
    "transformers": [],
    "continuous": ["--use_transformers_continuous_batching", "true"],
    "vllm": ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.3"],
}
"""Backend of `evaluate_policy.py` -> options of `grpo.py` for the same."""


def _learner(args: argparse.Namespace) -> list[str]:
    """Options of everything that trains."""
    device = ["--use_cpu", "true", "--bf16", "false"] if args.cpu else ["--bf16", "true"]
    learn = [*device, "--seed", str(args.seed), "--gradient_checkpointing", "false", "--report_to", "none"]
    return [*learn, "--logging_steps", "1", "--disable_tqdm", "true"]


def _judge(args: argparse.Namespace) -> list[str]:
    """Options of everything that has submissions evaluated."""
    judge = ["--evaluation", "colocated" if args.take_turns else "dedicated", "--timing_budget_s", "0.1"]
    judge += ["--evaluation_deadline_s", f"{args.evaluation_deadline_s:g}"]
    judge += ["--kernel_timeout_s", f"{args.kernel_timeout_s:g}", "--until", args.until]
    if args.evaluation_gpus:
        judge += ["--evaluation_gpus", *args.evaluation_gpus]
    else:
        judge += ["--evaluation_services", str(args.services)]
    return [*judge, "--evaluation_compilers", str(args.evaluation_compilers)] if args.evaluation_compilers else judge


def _evaluation(args: argparse.Namespace, name: str, policy: str, samples: int) -> list[str]:
    evaluate = ["--model_name_or_path", policy, "--dtype", "float32" if args.cpu else "bfloat16"]
    evaluate += ["--backend", args.backend]
    evaluate += ["--max_turns", str(args.turns), "--max_completion_length", str(args.completion)]
    return [*_on_rings(args, name, samples), *evaluate]


def _control(args: argparse.Namespace, name: str, agent: str) -> list[str]:
    """An agent without a model, whose samples are other kernels."""
    return [*_on_rings(args, f"rings_{name}", args.control_samples), "--agent", agent]


def _on_rings(args: argparse.Namespace, name: str, samples: int) -> list[str]:
    runs = Path(args.runs)
    evaluate = ["pkb_gym.training.evaluate_policy", "--prompts", str(runs / RINGS), "--output", str(runs / name)]
    evaluate += ["--samples", str(samples), "--batch_size", str(args.ring_batch), "--seed", str(args.seed)]
    return [*evaluate, "--corpus", str(args.corpus), *_judge(args)]


def _sft(args: argparse.Namespace) -> list[str]:
    runs = Path(args.runs)
    tune = ["pkb_gym.training.sft", "--rings", str(args.prompts), "--max_length", "3072", *_learner(args)]
    tune += ["--lr_scheduler_type", "cosine", "--warmup_steps", "10", "--save_strategy", "no"]
    tune += ["--per_device_train_batch_size", str(args.sft_batch), "--gradient_accumulation_steps", "2"]
    tune += ["--corpus", str(args.corpus), "--model_name_or_path", str(runs / "model")]
    tune += ["--output_dir", str(runs / "sft")]
    return [*tune, "--learning_rate", "3e-4", "--max_steps", str(args.sft_steps), "--reward_temperature", "0.5"]


def _grpo(args: argparse.Namespace) -> list[str]:
    runs = Path(args.runs)
    sft = str(runs / "sft")
    begin = sft if not (runs / BEGIN / WEIGHTS).exists() else str(runs / BEGIN)
    practise = ["pkb_gym.training.grpo", "--prompts", str(runs / PRACTICE), "--model_name_or_path", begin]
    practise += ["--shuffle_dataset", "false", *GENERATION[args.backend]]
    practise += ["--max_turns", str(args.grpo_turns), "--max_completion_length", str(args.grpo_completion)]
    practise += ["--output_dir", str(runs / "grpo"), *_learner(args), *_judge(args)]
    practise += ["--max_steps", str(args.grpo_steps)]
    practise += ["--max_submissions", str(args.grpo_submissions)] if args.grpo_submissions else []
    practise += ["--beta", str(args.beta), "--negative_weight", str(args.negative_weight)]
    practise += ["--reference_model", sft] if args.beta else []
    practise += ["--generate_ahead", str(args.generate_ahead).lower()]
    practise += ["--best_window", str(args.best_window)]
    practise += ["--drop_uniform_groups", str(args.drop_uniform_groups).lower()]
    practise += ["--per_device_train_batch_size", str(args.micro_batch), "--num_generations", str(args.group)]
    practise += ["--gradient_accumulation_steps", str(args.batch // args.micro_batch), "--temperature", "1.0"]
    practise += ["--learning_rate", str(args.learning_rate), "--lr_scheduler_type", "constant_with_warmup"]
    practise += ["--warmup_steps", "2", "--loss_type", "dapo", "--max_grad_norm", "0.5", "--save_steps", "2"]
    return [*practise, "--save_total_limit", "1", "--resume_from_checkpoint", "last"]


def _rft(args: argparse.Namespace) -> list[str]:
    runs = Path(args.runs)
    again = ["pkb_gym.training.rft", "--results", str(runs / "grpo" / "rollouts.jsonl"), "--prompts", str(args.prompts)]
    again += [*_learner(args), "--model_name_or_path", str(runs / "sft"), "--output_dir", str(runs / "rft")]
    again += ["--keep", "4", "--min_reward", "1.0"]
    again += ["--max_length", "2560", "--per_device_train_batch_size", str(args.sft_batch)]
    again += ["--gradient_accumulation_steps", "2"]
    return [*again, "--learning_rate", "5e-5", "--max_steps", str(args.rft_steps), "--save_strategy", "no"]
