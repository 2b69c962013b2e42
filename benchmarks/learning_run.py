r"""A pretrained model learns on one machine: supervised training, GRPO, and both judged on three rings of prompts.

    model   sft   grpo   rings_sft   rings_grpo   rings_base   rft   rings_rft   rings_sft_at_T   rings_grpo_at_T
    rings_nearest   rings_evolve

The last ones are controls: both policies at other `--temperatures`, and agents that learn nothing, which submit the
nearest kernel of the corpus and the plainest of a family. Each stage is a public recipe in a process of its own, with a
log and a time limit. Finished work is not done again: the same command over and over fits any time limit. Small files
come into `--out`: the figures of each policy on the rings (`about.json`), results, rollouts, losses, logs, and of what
SFT and GRPO have learned the difference to the weights before (`weight_difference`), in parts of at most 16 MiB. The
policy that is judged is the one that these parts give. `--resume-from` a folder with them goes on in another place,
without the state of the optimizer. The call that is to finish GRPO keeps time for what follows (`--keep-s`). Each step
of GRPO has the problems in turn, so that none is missing where it has as many prompts.

Evaluations run on the CPU, in `--services` services with processors of their own, or on `--evaluation-gpus`, where
`--evaluation-compilers` processors compile. With `--take-turns` the policy's GPU may be one of these: nothing is
evaluated while it generates or learns, and it rests while kernels are timed. A further seed is a further run, with
another `--runs` folder and `--seed`.

    python -m benchmarks.learning_run --gguf MODEL.gguf --corpus DATA --prompts RINGS --runs RUNS --out OUT --minutes 9
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import header, make_parser
from benchmarks.learning_prompts import PRACTICE, RINGS, write_practice, write_rings
from benchmarks.learning_stages import GENERATION, Stage, stages_of
from benchmarks.learning_weights import BEGIN, LEARNED, STATE, keep_weights, newest_weights, restore_kept, step_of
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.weight_difference import WEIGHTS

NAME = "learning_run"
SPARE_S = 15.0
"""Part of the time limit, in seconds, that is left for collecting."""
KEPT = ("*.log", "*.json", "results.jsonl", "parts/*.jsonl", "rollouts.jsonl", "phases.jsonl", "archive.jsonl")
"""Files of a stage's folder that come into the result."""


@dataclass
class Run:
    """The stages of a run, and which of them are finished.

    Attributes:
        args: Command line of this benchmark.
        deadline: End of this call, in seconds of `time.monotonic`.
        spent: Seconds of all calls, by stage.
        kept: Figures of the stored weights, by stage.
    """

    args: argparse.Namespace
    deadline: float
    spent: dict[str, float] = field(default_factory=dict)
    kept: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of this run's stages."""
        return Path(self.args.runs)

    def stages(self) -> list[Stage]:
        """The stages in order; see the module."""
        return stages_of(self.args)

    def begin(self) -> None:
        """Writes its prompts, and reads what earlier calls have done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts = Path(self.args.prompts) / "prompts.jsonl"
        write_rings(prompts, self.folder / RINGS)
        write_practice(prompts, self.folder / PRACTICE, self.args.seed)
        for found, name in ((self.spent, "spent.json"), (self.kept, "kept.json")):
            if (path := self.folder / name).exists():
                found.update(json.loads(path.read_bytes()))

    def go_on(self) -> None:
        """Does what is not finished, until a stage fails or the time is up."""
        self.begin()
        for name in [stage.name for stage in self.stages()]:
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
            if not self._has_ended(stage, status, time.monotonic() - began) and stage.name in ("model", "sft", "grpo"):
                return

    def _has_ended(self, stage: Stage, status: int, took_s: float) -> bool:
        """Keeps what a call of a stage has made, and returns whether the stage is finished."""
        self.spent[stage.name] = round(self.spent.get(stage.name, 0.0) + took_s, 1)
        write_atomically(self.folder / "spent.json", json.dumps(self.spent))
        print(f"{stage.name}: status {status} after {took_s:.0f} s", flush=True)
        collect(self.folder, Path(self.args.out))  # now, lest the machine's own limit come first
        is_over = self._is_over(stage, status)
        if stage.name in LEARNED:
            self.kept |= keep_weights(stage.name, self.folder, Path(self.args.out), is_over=is_over)
            write_atomically(self.folder / "kept.json", json.dumps(self.kept))
        if is_over:
            (self.folder / f"{stage.name}.finished").touch()
        return is_over

    def _is_over(self, stage: Stage, status: int) -> bool:
        folder = self.folder / stage.name
        if stage.total_s is None:
            return status == 0 and (folder / stage.made).exists()
        weights = newest_weights(folder)
        if not (weights / WEIGHTS).exists():
            return False
        state = json.loads((weights / STATE).read_bytes())
        no_other_call = self.args.keep_s > 0 or self.spent[stage.name] >= stage.total_s - self.args.start_s
        return bool(no_other_call or state["global_step"] >= state["max_steps"] or self._has_all_submissions(folder))

    def _has_all_submissions(self, folder: Path) -> bool:
        file = folder / "rollouts.jsonl"
        if not self.args.grpo_submissions or not file.exists():
            return False
        submissions = sum(row["failure"] != NO_SUBMISSION for row in read_jsonl(file))
        return bool(submissions >= self.args.grpo_submissions)

    def _process(self, stage: Stage, limit_s: float) -> int:
        arguments = list(stage.arguments)
        if stage.total_s is not None:  # it saves and ends by itself, with time to spare for starting and saving
            allowed_s = min(limit_s, stage.total_s - self.spent.get(stage.name, 0.0))
            arguments += ["--max_minutes", f"{max(5.0, allowed_s - self.args.start_s) / 60:.2f}"]
        log = self.folder / f"{stage.name}.log"
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as lines:
            try:
                command = [sys.executable, "-m", *arguments]
                return subprocess.run(
                    command, stdout=lines, stderr=lines, timeout=limit_s, env=environment, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return -1


def collect(runs: Path, out: Path) -> None:
    """Copies what is small into one compressed archive, with the end of each log beside it."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "run.tar.gz", "w:gz") as archive:
        for path in sorted({path for pattern in KEPT for path in runs.rglob(pattern)}):
            inside = path.relative_to(runs)
            of_checkpoint = any(part.startswith("checkpoint-") for part in inside.parts)
            if not of_checkpoint and inside.name not in SKIPPED and path.name != STATE:
                archive.add(path, str(inside))
        for stage in sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()):
            if (state := newest_weights(stage) / STATE).exists():
                archive.add(state, f"{stage.name}/{STATE}")


SKIPPED = frozenset({"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"})


OF_GRPO = (
    *("seed", "grpo-turns", "grpo-completion", "grpo-submissions", "grpo-steps", "group", "batch", "best-window"),
    *("beta", "negative-weight", "learning-rate"),
)
"""Options that `about.json` names."""


def make_options() -> argparse.ArgumentParser:
    """Its command line."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--gguf", type=Path, required=True, help="weights of the pretrained model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `pkb export corpus`")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of `ring_prompts.py`")
    parser.add_argument("--runs", type=Path, required=True, help="folder of models and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is kept")
    parser.add_argument("--minutes", type=float, required=True, help="time limit of this call")
    parser.add_argument("--seed", type=int, default=0, help="of the whole run (default: %(default)s)")
    parser.add_argument("--resume-from", type=Path, help="folder with the parts of `--out`, to go on with their policy")
    parser.add_argument("--services", type=int, default=7, help="evaluation services (default: %(default)s)")
    parser.add_argument("--evaluation-gpus", nargs="+", default=[], metavar="GPU", help="of one service instead")
    parser.add_argument("--evaluation-compilers", type=int, default=0, metavar="N", help="processors that compile CUDA")
    parser.add_argument("--take-turns", action="store_true", help="evaluate while the policy rests; see above")
    parser.add_argument("--skip", nargs="+", default=[], metavar="STAGE", help="to leave out")
    parser.add_argument("--backend", default="transformers", choices=tuple(GENERATION), help="what generates")
    parser.add_argument("--until", default="time", choices=("check", "time"), help="check: on emulated GPUs")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    for name, number in (
        ("turns", 2),
        ("completion", 2560),
        ("grpo-turns", 2),
        ("grpo-completion", 2560),
        ("grpo-submissions", 0),  # 0: no limit
        ("batch", 56),
        ("ring-batch", 108),  # all of `sizes` and `left_out`, two samples each: the first batch to be written
        ("micro-batch", 8),
        ("group", 8),
        ("samples", 2),
        ("control-samples", 8),
        ("sft-steps", 100),
        ("sft-batch", 8),
        ("rft-steps", 60),
        ("grpo-steps", 200),
        ("best-window", 0),  # steps; 0 judges the newest policy
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help="(default: %(default)s)")
    for name, value, what in (
        ("beta", 0.0, "weight of GRPO's distance to SFT"),
        ("negative-weight", 1.0, "of negative advantages"),
        ("learning-rate", 4e-5, "of GRPO"),
        ("grpo-s", 560.0, "seconds of GRPO in all calls"),
        ("start-s", 75.0, "of a call of GRPO, to start, end a step and save"),
        ("keep-s", 0.0, "GRPO ends in this call, and leaves so many seconds to what follows"),
        ("kernel-timeout-s", 4.0, "of a block of a kernel's calls"),
        ("evaluation-deadline-s", 240.0, "longest wait for an evaluation, which counts for nothing then"),
    ):
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--temperatures", nargs="*", type=float, default=[], metavar="T", help="further ones of SFT and GRPO"
    )
    parser.add_argument("--generate-ahead", action="store_true", help="evaluate while the policy learns and generates")
    parser.add_argument("--drop-uniform-groups", action="store_true", help="leave groups without an advantage out")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Goes on with a run, and collects what is there."""
    parser = make_options()
    args = parser.parse_args(argv)
    if args.take_turns and not args.evaluation_gpus and args.services != 1:
        parser.error("--take-turns is for one service: give --evaluation-gpus or --services 1")
    if args.take_turns and args.generate_ahead:
        parser.error("--generate-ahead evaluates while the policy is at work, which --take-turns rules out")
    began = time.monotonic()
    run = Run(args, began + 60 * args.minutes)
    try:
        run.go_on()
    finally:
        write_about(run, began)
        collect(run.folder, Path(args.out))
    print(json.dumps(run.spent))


def write_about(run: Run, began: float) -> None:
    """Writes what the run is of, as far as it has come, with the figures of each policy on the rings."""
    run.folder.mkdir(parents=True, exist_ok=True)
    args = run.args
    about: dict[str, Any] = header() | {
        "gpus": list(gpus.names()),
        "evaluation_gpus": args.evaluation_gpus,
        "takes_turns": args.take_turns,
        "options": {name: getattr(args, name.replace("-", "_")) for name in OF_GRPO},
        "wall_s": round(time.monotonic() - began, 1),
        "spent_s": run.spent,
        "kept": run.kept,
        "grpo_steps_before": step_of(run.folder / BEGIN),
        "rings": {file.parent.name: json.loads(file.read_bytes()) for file in sorted(run.folder.glob("*/rings.json"))},
    }
    text = row_json(about)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for folder in (run.folder, Path(args.out)):
        write_atomically(folder / "about.json", text)


if __name__ == "__main__":
    main()
