r"""A pretrained model learns on one machine: supervised training, GRPO, and both judged on three rings of prompts.

    model   sft   grpo   rings_sft   rings_grpo   rings_base   verdict_sft   verdict_grpo   rft   rings_rft   samples
    evolve

Each stage is a public recipe in a process of its own, with a log and a time limit. Finished work is not done again:
the same command over and over fits any time limit. Small files come into `--out`: results, summaries, rollouts,
losses, logs, and of what SFT and GRPO have learned the difference to the weights before (`weight_difference`), in parts
of at most 16 MiB. The policy that is judged is the one that these parts give. `--resume-from` a folder with them goes
on in another place, without the state of the optimizer. Evaluations run on the CPU, in `--services` services with
processors of their own. The stages `verdict_...` judge a policy that reads of a failure no more than that it was one:
what the feedback's text is good for. The call that is to finish GRPO keeps time for what follows (`--keep-s`).
`samples` (best of n) and `evolve` (a search without a model, on one prompt of each problem) are controls; `evolve` has
as many evaluations of a prompt as GRPO had, its training included. With `--seed 0 1 2`, the second and third seed have
stages of GRPO and `rft` of their own, in folders `seed-1` and `seed-2` of both `--runs` and `--out`; with
`--side-by-side`, the stages after SFT run for all seeds at once, each on a GPU and a share of the processors of its
own. Each step of GRPO has the problems in turn, so that none is missing where it has as many prompts.

    python -m benchmarks.learning_run --gguf MODEL.gguf --corpus DATA --prompts RINGS --runs RUNS --out OUT --minutes 9
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path

from benchmarks import learning_study
from benchmarks.common import header, make_parser
from benchmarks.learning_lanes import WHOLE, Lane, side_by_side
from benchmarks.learning_prompts import PRACTICE, RINGS, write_practice, write_rings
from benchmarks.learning_weights import (
    BEGIN,
    LEARNED,
    STATE,
    judged_weights,
    keep_weights,
    newest_weights,
    restore_kept,
    step_of,
)
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.weight_difference import WEIGHTS

NAME = "learning_run"
COMMON_TO_SEEDS = ("model", "sft", "rings_sft", "rings_base", "verdict_sft", "samples", "evolve")
"""Stages that the first seed has alone."""
COMMON_AT_FIRST = ("model", "sft")
"""Those of them that all other stages need."""
SPARE_S = 15.0
"""Of the time limit, what is left for collecting."""
KEPT = ("*.log", "*.json", "results.jsonl", "parts/*.jsonl", "rollouts.jsonl", "phases.jsonl", "archive.jsonl")
"""Files of a stage's folder that come into the result."""
STUDY_RING = "sizes"
"""Ring on which policies and controls are compared at equal evaluations."""
RINGS_OF_VERDICTS = ("sizes", "left_out")
"""Rings on which the text of the feedback is left out."""


@dataclass(frozen=True)
class Stage:
    """One recipe.

    Attributes:
        name: of the stage and of its folder.
        arguments: module, and its options.
        limit_s: longest time of one call.
        total_s: time of all calls together, after which the stage counts as finished; None where one call is enough.
        made: a file in the stage's folder without which it is not finished.
    """

    name: str
    arguments: Sequence[str]
    limit_s: float
    total_s: float | None = None
    made: str = ""


@dataclass
class Run:
    """The stages of one seed, and what is finished of them.

    Attributes:
        args: of this benchmark.
        deadline: by the monotonic clock.
        lane: where the stages run.
        spent: stage -> seconds of all calls.
        kept: stage -> figures of its stored weights.
    """

    args: argparse.Namespace
    deadline: float
    lane: Lane = WHOLE
    spent: dict[str, float] = field(default_factory=dict)
    kept: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Of this run's stages."""
        return Path(self.args.runs)

    @property
    def verdict_prompts(self) -> int:
        """Prompts of the rings that are judged without the text of the feedback; they come first."""
        return sum(row["ring"] in RINGS_OF_VERDICTS for row in read_jsonl(self.folder / RINGS))

    def stages(self) -> list[Stage]:
        """In order; see the module."""
        args, runs = self.args, self.folder
        model, sft, grpo, rft = (str(runs / name) for name in ("model", "sft", "grpo", "rft"))
        trained = str(judged_weights(runs / "grpo"))
        device = ["--use_cpu", "true", "--bf16", "false"] if args.cpu else ["--bf16", "true"]
        learn = [*device, "--seed", str(args.seed), "--gradient_checkpointing", "false", "--report_to", "none"]
        learn += ["--logging_steps", "1", "--disable_tqdm", "true"]
        judge = ["--evaluation", "dedicated", "--evaluation_services", str(args.services), "--timing_budget_s", "0.1"]
        judge += ["--evaluation_deadline_s", "240", "--kernel_timeout_s", "4", "--decoding", args.decoding]
        length = ["--max_turns", str(args.turns), "--max_completion_length", str(args.completion)]
        ring_file = str(runs / RINGS)
        verdicts = ["--feedback", "verdict", "--limit", str(self.verdict_prompts)]

        def rings(policy: str, samples: int, *more: str, name: str, limit_s: float) -> Stage:
            evaluate = ["pkb_gym.training.evaluate_policy", "--prompts", ring_file, "--model_name_or_path", policy]
            evaluate += ["--dtype", "float32" if args.cpu else "bfloat16", "--output", str(runs / name)]
            evaluate += ["--samples", str(samples), "--batch_size", str(args.ring_batch), "--seed", str(args.seed)]
            return Stage(name, [*evaluate, *judge, *length, *more], limit_s, made="summary.json")

        tune = ["pkb_gym.training.sft", "--rings", str(args.prompts), "--max_length", "3072", *learn]
        tune += ["--lr_scheduler_type", "cosine", "--warmup_steps", "10", "--save_strategy", "no"]
        tune += ["--per_device_train_batch_size", str(args.sft_batch), "--gradient_accumulation_steps", "2"]
        first = ["--corpus", str(args.corpus), "--model_name_or_path", model, "--output_dir", sft]
        first += ["--learning_rate", "3e-4", "--max_steps", str(args.sft_steps), "--reward_temperature", "0.5"]
        begin = sft if not (runs / BEGIN / WEIGHTS).exists() else str(runs / BEGIN)
        practise = ["pkb_gym.training.grpo", "--prompts", str(runs / PRACTICE), "--model_name_or_path", begin]
        practise += ["--shuffle_dataset", "false"]
        practise += ["--max_turns", str(args.grpo_turns), "--max_completion_length", str(args.grpo_completion)]
        practise += ["--output_dir", grpo, *learn, *judge, "--max_steps", str(args.grpo_steps)]
        practise += ["--beta", str(args.beta), "--negative_weight", str(args.negative_weight)]
        practise += ["--reference_model", sft] if args.beta else []
        practise += ["--generate_ahead", str(args.generate_ahead).lower()]
        practise += ["--best_window", str(args.best_window)]
        practise += ["--drop_uniform_groups", str(args.drop_uniform_groups).lower()]
        practise += ["--per_device_train_batch_size", str(args.micro_batch), "--num_generations", str(args.group)]
        practise += ["--gradient_accumulation_steps", str(args.batch // args.micro_batch), "--temperature", "1.0"]
        practise += ["--learning_rate", str(args.learning_rate), "--lr_scheduler_type", "constant_with_warmup"]
        practise += ["--warmup_steps", "2", "--loss_type", "dapo", "--max_grad_norm", "0.5", "--save_steps", "2"]
        practise += ["--save_total_limit", "1", "--resume_from_checkpoint", "last"]
        again = ["--results", str(runs / "grpo" / "rollouts.jsonl"), "--prompts", str(args.prompts), *learn]
        again += ["--model_name_or_path", sft, "--output_dir", rft, "--keep", "4", "--min_reward", "1.0"]
        again += ["--max_length", "2560", "--per_device_train_batch_size", str(args.sft_batch)]
        again += ["--gradient_accumulation_steps", "2"]
        again += ["--learning_rate", "5e-5", "--max_steps", str(args.rft_steps), "--save_strategy", "no"]
        search = ["benchmarks.learning_search", "--prompts", ring_file, "--ring", STUDY_RING, "--per-problem", "1"]
        search += ["--evaluations", str(self.evaluations_of_a_prompt), "--services", str(args.services)]
        search += ["--kernel-timeout", "4", "--output", str(runs / "evolve")]
        convert = ["pkb_gym.training.pretrained_model", "--gguf", str(args.gguf), "--output", model]
        return [
            Stage("model", [*convert, "--dtype", "float32"], 120, made="model.safetensors"),
            Stage("sft", [*tune, *first], 240, made="trainer_state.json"),
            Stage("grpo", practise, 600, total_s=args.grpo_s),
            rings(sft, args.samples, name="rings_sft", limit_s=300),
            rings(trained, args.samples, name="rings_grpo", limit_s=300),
            rings(model, 1, "--max_completion_length", str(args.completion // 2), name="rings_base", limit_s=90),
            rings(sft, args.samples, *verdicts, name="verdict_sft", limit_s=200),
            rings(trained, args.samples, *verdicts, name="verdict_grpo", limit_s=200),
            Stage("rft", ["pkb_gym.training.rft", *again], 120, made="trainer_state.json"),
            rings(rft, args.samples, name="rings_rft", limit_s=300),
            rings(sft, args.best_of, "--limit", "42", "--temperature", "0.9", name="samples", limit_s=500),
            Stage("evolve", search, 400, made="results.jsonl"),
        ]

    @property
    def evaluations_of_a_prompt(self) -> int:
        """As many as GRPO had of a prompt of the ring, its training included; 24 before it has begun."""
        file = self.folder / "grpo" / "rollouts.jsonl"
        if not file.exists():
            return 24
        prompts = sum(row["ring"] == STUDY_RING for row in read_jsonl(self.folder / RINGS))
        charged: float = training_evaluations(file, file.stat().st_mtime_ns) / max(1, prompts)
        return ceil(charged) + int(self.args.samples) * int(self.args.turns)

    def go_on(self, only: Collection[str] | None = None) -> None:
        """Does what is not finished, until a stage fails or the time is up.

        Args:
            only: names of stages; by default all.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts = Path(self.args.prompts) / "prompts.jsonl"
        write_rings(prompts, self.folder / RINGS)
        write_practice(prompts, self.folder / PRACTICE, self.args.seed)
        times = self.folder / "spent.json"
        self.spent = json.loads(times.read_bytes()) if times.exists() else {}
        figures = self.folder / "kept.json"
        self.kept = json.loads(figures.read_bytes()) if figures.exists() else {}
        for name in [stage.name for stage in self.stages() if only is None or stage.name in only]:
            if self.args.resume_from is not None and name in LEARNED:
                restore_kept(name, self.args.resume_from, self.folder)
            stage = next(stage for stage in self.stages() if stage.name == name)  # anew: GRPO has written its weights
            if stage.name in self.args.skip or (self.folder / f"{stage.name}.finished").exists():
                continue
            left_s = self.deadline - time.monotonic() - SPARE_S
            if stage.total_s is not None:
                left_s -= self.args.keep_s
            if left_s < 20:
                return
            began = time.monotonic()
            status = self._process(stage, min(left_s, stage.limit_s))
            took_s = time.monotonic() - began
            self.spent[stage.name] = round(self.spent.get(stage.name, 0.0) + took_s, 1)
            write_atomically(times, json.dumps(self.spent))
            print(f"{stage.name}: seed {self.args.seed}, status {status} after {took_s:.0f} s", flush=True)
            collect(self.folder, Path(self.args.out))  # now, lest the machine's own limit come first
            is_over = self._is_over(stage, status)
            if stage.name in LEARNED:
                self.kept |= keep_weights(stage.name, self.folder, Path(self.args.out), is_over=is_over)
                write_atomically(figures, json.dumps(self.kept))
            if is_over:
                (self.folder / f"{stage.name}.finished").touch()
            elif stage.name in ("model", "sft", "grpo"):
                return

    def _is_over(self, stage: Stage, status: int) -> bool:
        folder = self.folder / stage.name
        if stage.total_s is None:
            return status == 0 and (folder / stage.made).exists()
        weights = newest_weights(folder)
        if not (weights / WEIGHTS).exists():
            return False
        state = json.loads((weights / STATE).read_bytes())
        no_other_call = self.args.keep_s > 0 or self.spent[stage.name] >= stage.total_s - self.args.start_s
        return bool(no_other_call or state["global_step"] >= state["max_steps"])

    def _process(self, stage: Stage, limit_s: float) -> int:
        arguments = list(stage.arguments)
        if stage.total_s is not None:  # it saves and ends by itself, with time to spare for starting and saving
            allowed_s = min(limit_s, stage.total_s - self.spent.get(stage.name, 0.0))
            arguments += ["--max_minutes", f"{max(5.0, allowed_s - self.args.start_s) / 60:.2f}"]
        log = self.folder / f"{stage.name}.log"
        environment = os.environ | self.lane.environment | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as lines:
            try:
                command = self.lane.bound([sys.executable, "-m", *arguments])
                return subprocess.run(
                    command, stdout=lines, stderr=lines, timeout=limit_s, env=environment, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return -1


@cache
def training_evaluations(rollouts: Path, changed_ns: int) -> int:  # noqa: ARG001  # part of the key of the cache
    """Evaluations of a training, see `learning_study`."""
    return learning_study.training_evaluations(read_jsonl(rollouts))


def collect(runs: Path, out: Path) -> None:
    """Copies what is small into one compressed archive, with the end of each log beside it."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "run.tar.gz", "w:gz") as archive:
        for path in sorted({path for pattern in KEPT for path in runs.rglob(pattern)}):
            inside = path.relative_to(runs)
            elsewhere = any(part.startswith(("checkpoint-", "seed-")) for part in inside.parts)
            if not elsewhere and inside.name not in SKIPPED and path.name != STATE:
                archive.add(path, str(inside))
        for stage in sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()):
            if (state := newest_weights(stage) / STATE).exists():
                archive.add(state, f"{stage.name}/{STATE}")
    for name in ("rings_sft", "rings_grpo"):
        if (found := runs / name / "rings.json").exists():
            shutil.copy(found, out / f"{name}.json")


SKIPPED = frozenset({"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"})


def main(argv: Sequence[str] | None = None) -> None:
    """Goes on with a run, and collects what is there."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--gguf", type=Path, required=True, help="weights of the pretrained model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `pkb export corpus`")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of `ring_prompts.py`")
    parser.add_argument("--runs", type=Path, required=True, help="folder of models and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is kept")
    parser.add_argument("--minutes", type=float, required=True, help="time limit of this call")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="seeds of GRPO, one after another; see above")
    parser.add_argument("--side-by-side", action="store_true", help="seeds at once, each on a GPU; see above")
    parser.add_argument("--resume-from", type=Path, help="folder with the parts of `--out`, to go on with their policy")
    parser.add_argument("--services", type=int, default=7, help="evaluation services (default: %(default)s)")
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="STAGE", help="to leave out; SEED:STAGE in one seed alone"
    )
    parser.add_argument("--decoding", default="auto", choices=("auto", "generate", "graph"))
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    for name, number in (
        ("turns", 2),
        ("completion", 2560),
        ("grpo-turns", 2),
        ("grpo-completion", 2560),
        ("batch", 56),
        ("ring-batch", 108),  # all of `sizes` and `left_out`, two samples each: the first batch to be written
        ("micro-batch", 8),
        ("group", 8),
        ("samples", 2),
        ("best-of", 8),
        ("sft-steps", 100),
        ("sft-batch", 8),
        ("rft-steps", 60),
        ("grpo-steps", 200),
        ("best-window", 0),  # steps; 0 judges the newest policy
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help="(default: %(default)s)")
    parser.add_argument(
        "--beta", type=float, default=0.0, help="weight of GRPO's distance to SFT (default: %(default)s)"
    )
    parser.add_argument(
        "--negative-weight", type=float, default=1.0, help="of negative advantages (default: %(default)s)"
    )
    parser.add_argument("--generate-ahead", action="store_true", help="evaluate while the policy learns and generates")
    parser.add_argument("--drop-uniform-groups", action="store_true", help="leave groups without an advantage out")
    parser.add_argument("--learning-rate", type=float, default=4e-5, help="of GRPO (default: %(default)s)")
    parser.add_argument(
        "--grpo-s", type=float, default=560.0, help="seconds of GRPO in all calls (default: %(default)s)"
    )
    parser.add_argument("--start-s", type=float, default=75.0, help="of a call of GRPO, to start, end a step and save")
    parser.add_argument(
        "--keep-s", type=float, default=0.0, help="GRPO ends in this call, and leaves so many seconds to what follows"
    )
    args = parser.parse_args(argv)
    began = time.monotonic()
    runs = runs_of_seeds(args, began + 60 * args.minutes)
    if not args.side_by_side:
        for run in runs:
            go_on(run, began)
        return
    first, lanes = next(runs), side_by_side(len(args.seed))
    replace(first, lane=Lane(lanes[0].gpu)).go_on(COMMON_AT_FIRST)  # trainers would share a batch out to all GPUs
    at_once = [replace(run, lane=lane) for run, lane in zip([first, *runs], lanes, strict=False)]
    with ThreadPoolExecutor(len(at_once)) as pool:
        for ended in [pool.submit(go_on, run, began) for run in at_once]:
            ended.result()


def go_on(run: Run, began: float) -> None:
    """Goes on with the run of a seed, and collects what is there."""
    try:
        run.go_on()
    finally:
        write_about(run, began)
        collect(run.folder, Path(run.args.out))
    print(json.dumps(run.spent))


def runs_of_seeds(args: argparse.Namespace, deadline: float) -> Iterator[Run]:
    """A run for each seed. Those after the first have its model and SFT, and do not begin before these are there."""
    first, *further = args.seed
    yield Run(argparse.Namespace(**vars(args) | {"seed": first, "skip": skipped(args.skip, first)}), deadline)
    before = ("sft",) if args.side_by_side else ("sft", "grpo")
    for seed in further:
        folder = args.runs / f"seed-{seed}"
        if not all((args.runs / f"{name}.finished").exists() for name in before):
            return
        folder.mkdir(exist_ok=True)
        for name in ("model", "sft"):
            if not (folder / name).exists():
                (folder / name).symlink_to(Path("..") / name)
            (folder / f"{name}.finished").touch()
        own = {
            "seed": seed,
            "runs": folder,
            "out": args.out / folder.name,
            "skip": [*skipped(args.skip, seed), *COMMON_TO_SEEDS],
        }
        parts = None if args.resume_from is None else args.resume_from / folder.name
        yield Run(argparse.Namespace(**vars(args) | own | {"resume_from": parts}), deadline)


def skipped(words: Sequence[str], seed: int) -> list[str]:
    """Stages that a seed leaves out: those without a seed, and those with its own.

    Example:
        >>> skipped(["rft", "1:samples", "2:grpo"], seed=1)
        ['rft', 'samples']
    """
    named = [word.rpartition(":") for word in words]
    return [stage for of, _, stage in named if of in ("", str(seed))]


def write_about(run: Run, began: float) -> None:
    """What the run is of, as far as it has come."""
    run.folder.mkdir(parents=True, exist_ok=True)
    about = header() | {
        "gpus": list(gpus.names()),
        "seed": run.args.seed,
        "wall_s": round(time.monotonic() - began, 1),
        "spent_s": run.spent,
        "kept": run.kept,
        "grpo_steps_before": step_of(run.folder / BEGIN),
    }
    write_atomically(run.folder / "about.json", json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
