r"""A pretrained model learns on one machine: supervised training, GRPO, and both judged on three rings of prompts.

    model   sft   grpo   rings_sft   rings_grpo   rings_base   verdict_sft   verdict_grpo   rft   rings_rft   samples
    evolve

Each stage is a public recipe in a process of its own, with a log and a time limit. Finished work is not done again:
the same command over and over fits any time limit. Small files come into `--out`: results, summaries, rollouts,
losses, logs, and of what SFT and GRPO have learned the difference to the weights before (`weight_difference`), in parts
of at most 16 MiB. The policy that is judged is the one that these parts give. `--resume-from` a folder with them goes
on in another place, without the state of the optimizer. The call that is to finish GRPO keeps time for what follows
(`--keep-s`). Each step of GRPO has the problems in turn, so that none is missing where it has as many prompts.

Evaluations run on the CPU, in `--services` services with processors of their own, or on `--evaluation-gpus`, where
`--evaluation-compilers` processors compile. With `--take-turns` the policy's GPU may be one of these: nothing is
evaluated while it generates or learns, and it rests while kernels are timed. The stages `verdict_...` judge a policy
that reads of a failure no more than that it was one: what the feedback's text is good for. `samples` (best of n) and
`evolve` (a search without a model, on one prompt of each problem, on the CPU alone) are controls; `evolve` has as many
evaluations of a prompt as GRPO had, its training included.

With `--seed 0 1 2`, the second and third seed have stages of GRPO and `rft` of their own, in folders `seed-1` and
`seed-2` of both `--runs` and `--out`. An arm has so likewise, with other options of GRPO and the first seed:
`--arm two_turns grpo-turns=2 grpo-completion=2560` is in the folder `arm-two_turns`; with `--grpo-submissions`, arms
end with equally many submissions. With `--side-by-side`, the stages after SFT run for all of them at once, each on a
GPU and a share of the processors of its own; with `--controls-apart`, so do those of the first seed that need SFT
alone. With `--take-turns` too, each has an equal share of `--evaluation-gpus`, and its policy the first of them.

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
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path

from benchmarks import learning_branches, learning_study
from benchmarks.common import header, make_parser
from benchmarks.learning_lanes import WHOLE, Lane, folders_apart, lanes_of, measure_share
from benchmarks.learning_prompts import PRACTICE, RINGS, write_practice, write_rings
from benchmarks.learning_stages import OF_SFT_ALONE, RINGS_OF_VERDICTS, STUDY_RING, Counts, Stage, stages_of
from benchmarks.learning_weights import BEGIN, LEARNED, STATE, keep_weights, newest_weights, restore_kept, step_of
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.weight_difference import WEIGHTS

NAME = "learning_run"
COMMON_AT_FIRST = ("model", "sft")
"""Stages that all others need."""
SPARE_S = 15.0
"""Of the time limit, what is left for collecting."""
KEPT = ("*.log", "*.json", "results.jsonl", "parts/*.jsonl", "rollouts.jsonl", "phases.jsonl", "archive.jsonl")
"""Files of a stage's folder that come into the result."""


@dataclass
class Run:
    """The stages of a seed or an arm, and what is finished of them.

    Attributes:
        args: of this benchmark.
        deadline: by the monotonic clock.
        lane: where the stages run.
        spent: stage -> seconds of all calls.
        kept: stage -> figures of its stored weights.
        writing: held while files are written that lanes of this run share.
    """

    args: argparse.Namespace
    deadline: float
    lane: Lane = WHOLE
    spent: dict[str, float] = field(default_factory=dict)
    kept: dict[str, dict[str, float]] = field(default_factory=dict)
    writing: threading.RLock = field(default_factory=threading.RLock)

    @property
    def folder(self) -> Path:
        """Of this run's stages."""
        return Path(self.args.runs)

    def in_lane(self, lane: Lane) -> Run:
        """The same run, whose stages are evaluated in this lane too."""
        args = argparse.Namespace(**vars(self.args) | {"evaluation_gpus": list(lane.evaluation_gpus)})
        return replace(self, args=args, lane=lane)

    def prompts_of(self, *rings: str) -> int:
        """Prompts of these rings that policies are judged on."""
        return sum(row["ring"] in rings for row in read_jsonl(self.folder / RINGS))

    def stages(self) -> list[Stage]:
        """In order; see the module."""
        counts = Counts(
            study_prompts=self.prompts_of(STUDY_RING),
            verdict_prompts=self.prompts_of(*RINGS_OF_VERDICTS),
            search_evaluations=self.evaluations_of_a_prompt,
        )
        return stages_of(self.args, counts)

    @property
    def evaluations_of_a_prompt(self) -> int:
        """As many as GRPO had of a prompt of the ring, its training included; 24 before it has begun."""
        file = self.folder / "grpo" / "rollouts.jsonl"
        if not file.exists():
            return 24
        charged: float = training_counts(file, file.stat().st_mtime_ns)[1] / max(1, self.prompts_of(STUDY_RING))
        return ceil(charged) + int(self.args.samples) * int(self.args.turns)

    def begin(self) -> None:
        """Writes its prompts, and reads what earlier calls have done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts = Path(self.args.prompts) / "prompts.jsonl"
        write_rings(prompts, self.folder / RINGS)
        write_practice(prompts, self.folder / PRACTICE, self.args.seed)
        for found, name in ((self.spent, "spent.json"), (self.kept, "kept.json")):
            if (path := self.folder / name).exists():
                found.update(json.loads(path.read_bytes()))

    def go_on(self, only: Collection[str] | None = None) -> None:
        """Does what is not finished, until a stage fails or the time is up.

        Args:
            only: names of stages; by default all.
        """
        with self.writing:
            self.begin()
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
            with self.writing:
                is_over = self._has_ended(stage, status, time.monotonic() - began)
            if not is_over and stage.name in ("model", "sft", "grpo"):
                return

    def _has_ended(self, stage: Stage, status: int, took_s: float) -> bool:
        """Keeps what a call of a stage has made, and returns whether the stage is finished."""
        self.spent[stage.name] = round(self.spent.get(stage.name, 0.0) + took_s, 1)
        write_atomically(self.folder / "spent.json", json.dumps(self.spent))
        name = f"seed {self.args.seed}" if self.args.arm is None else f"arm {self.args.arm}"
        print(f"{stage.name}: {name}, status {status} after {took_s:.0f} s", flush=True)
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
        return training_counts(file, file.stat().st_mtime_ns)[0] >= int(self.args.grpo_submissions)

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
def training_counts(rollouts: Path, changed_ns: int) -> tuple[int, int]:  # noqa: ARG001  # part of the cache's key
    """Submissions of a training, and those of them that were evaluated, see `learning_study`."""
    rows = read_jsonl(rollouts)
    return sum(row["failure"] != NO_SUBMISSION for row in rows), learning_study.training_evaluations(rows)


def collect(runs: Path, out: Path) -> None:
    """Copies what is small into one compressed archive, with the end of each log beside it."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "run.tar.gz", "w:gz") as archive:
        for path in sorted({path for pattern in KEPT for path in runs.rglob(pattern)}):
            inside = path.relative_to(runs)
            elsewhere = any(part.startswith(OF_OTHERS) for part in inside.parts)
            if not elsewhere and inside.name not in SKIPPED and path.name != STATE:
                archive.add(path, str(inside))
        for stage in sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()):
            if (state := newest_weights(stage) / STATE).exists():
                archive.add(state, f"{stage.name}/{STATE}")
    for name in ("rings_sft", "rings_grpo"):
        if (found := runs / name / "rings.json").exists():
            shutil.copy(found, out / f"{name}.json")


OF_OTHERS = ("checkpoint-", learning_branches.SEED, learning_branches.ARM)
"""Beginnings of the names of folders that do not come into a run's result."""
SKIPPED = frozenset({"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"})


def make_options() -> argparse.ArgumentParser:
    """Its command line."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--gguf", type=Path, required=True, help="weights of the pretrained model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `pkb export corpus`")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of `ring_prompts.py`")
    parser.add_argument("--runs", type=Path, required=True, help="folder of models and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is kept")
    parser.add_argument("--minutes", type=float, required=True, help="time limit of this call")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="seeds of GRPO, one after another; see above")
    parser.add_argument(
        "--arm", nargs="+", action="append", default=[], metavar="WORD", help="NAME, then OPTION=VALUE; see above"
    )
    parser.add_argument("--side-by-side", action="store_true", help="seeds and arms at once, each on a GPU; see above")
    parser.add_argument("--controls-apart", action="store_true", help="--side-by-side: a lane for controls; see above")
    parser.add_argument("--resume-from", type=Path, help="folder with the parts of `--out`, to go on with their policy")
    parser.add_argument("--services", type=int, default=7, help="evaluation services (default: %(default)s)")
    parser.add_argument(
        "--evaluation-gpus", nargs="+", default=[], metavar="GPU", help="of one service instead, or one of each lane"
    )
    parser.add_argument("--evaluation-compilers", type=int, default=0, metavar="N", help="processors that compile CUDA")
    parser.add_argument("--take-turns", action="store_true", help="evaluate while the policy rests; see above")
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="STAGE", help="to leave out; SEED:STAGE or ARM:STAGE in one alone"
    )
    parser.add_argument("--decoding", default="auto", choices=("auto", "generate", "graph"))
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
        ("best-of", 8),
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
    parser.add_argument("--generate-ahead", action="store_true", help="evaluate while the policy learns and generates")
    parser.add_argument("--drop-uniform-groups", action="store_true", help="leave groups without an advantage out")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Goes on with a run, and collects what is there."""
    parser = make_options()
    words = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(words)
    if args.controls_apart and not args.side_by_side:
        parser.error("--controls-apart is for lanes: give --side-by-side too")
    if args.take_turns and not args.evaluation_gpus and args.services != 1:
        parser.error("--take-turns is for one service: give --evaluation-gpus or --services 1")
    if args.take_turns and args.generate_ahead:
        parser.error("--generate-ahead evaluates while the policy is at work, which --take-turns rules out")
    began = time.monotonic()
    deadline = began + 60 * args.minutes
    try:
        learning_branches.check_arms(args, lambda more: parser.parse_args([*words, *more]))
        lanes = lanes_of(args) if args.side_by_side else []
    except ConfigError as error:
        parser.error(str(error))

    def branches() -> list[Run]:
        found = learning_branches.further(args, lambda more: parser.parse_args([*words, *more]))
        return [Run(of_branch, deadline) for of_branch in found]

    first = Run(learning_branches.of_first(args), deadline)
    if not args.side_by_side:
        go_on(first, began)
        for run in branches():
            go_on(run, began)
        return
    with folders_apart(lanes) as apart:
        go_on_side_by_side(first, branches, apart, began)


def go_on_side_by_side(first: Run, branches: Callable[[], list[Run]], lanes: Sequence[Lane], began: float) -> None:
    """Goes on with the common stages in the first lane, and then with all that is there, each in a lane."""
    args = first.args
    with_all_processors = replace(lanes[0], processors=())  # and one GPU: trainers would share a batch out to all
    first.in_lane(with_all_processors).go_on(COMMON_AT_FIRST)
    if not args.evaluation_gpus:
        measure_share(lanes[0], args.services)
    apart = OF_SFT_ALONE if args.controls_apart else ()
    others = [stage.name for stage in first.stages() if stage.name not in apart]
    at_once = [(run, None) for run in branches()]
    has_sft = (first.folder / "sft.finished").exists()
    parts = [(first, others), *at_once, *([(first, apart)] if apart and has_sft else [])]
    with ThreadPoolExecutor(len(parts)) as pool:
        laned = [(run.in_lane(lane), only) for (run, only), lane in zip(parts, lanes, strict=False)]
        for ended in [pool.submit(go_on, run, began, only) for run, only in laned]:
            ended.result()


def go_on(run: Run, began: float, only: Collection[str] | None = None) -> None:
    """Goes on with the run of a seed or an arm, and collects what is there."""
    try:
        run.go_on(only)
    finally:
        with run.writing:
            write_about(run, began)
            collect(run.folder, Path(run.args.out))
    print(json.dumps(run.spent))


def write_about(run: Run, began: float) -> None:
    """What the run is of, as far as it has come."""
    run.folder.mkdir(parents=True, exist_ok=True)
    about = header() | {
        "gpus": list(gpus.names()),
        "seed": run.args.seed,
        "arm": run.args.arm,
        "evaluation_gpus": run.args.evaluation_gpus,
        "takes_turns": run.args.take_turns,
        "options": {name: getattr(run.args, name.replace("-", "_")) for name in learning_branches.ARM_OPTIONS},
        "wall_s": round(time.monotonic() - began, 1),
        "spent_s": run.spent,
        "kept": run.kept,
        "grpo_steps_before": step_of(run.folder / BEGIN),
    }
    write_atomically(run.folder / "about.json", json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
