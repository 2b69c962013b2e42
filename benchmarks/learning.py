"""The effect of SFT and GRPO on a small decoder that begins from nothing: held-out prompts, before and after.

Every seed goes through the public recipes, one after the other: `sft`, `evaluate_policy`, `grpo`, `evaluate_policy`.
Seeds run side by side and share one evaluation service, on GPUs of its own. Finished work is not done again: with
`--minutes`, the same command over and over fits any time limit.

    pkb export prompts --out DATA ...; pkb export corpus --out DATA ...
    python -m benchmarks.learning --data DATA --runs RUNS [--seeds 0 1 2] [--training-gpus 0 1 --evaluation-gpus 2 3]
    python -m benchmarks.learning --render RESULT [--svg FILE]    prints the tables of a result, draws its curves
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import RESULTS, header
from benchmarks.learning_report import GPUS_BUSY, collect, draw, markdown
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.jsonl import LineFile
from pkb_gym.training.evaluation.owner import ServiceProcess
from pkb_gym.training.processes.phases import GpuSampler

CONFIGS = Path(__file__).resolve().parent.parent / "training" / "configs"
NAME = "learning"
STEPS = ("sft", "before", "grpo", "after")
SPARE_S = 45.0
"""The part of the time limit that is left to a run to save itself."""


def commands(args: argparse.Namespace, seed: int, url: str, max_minutes: float | None) -> dict[str, list[str]]:
    """The steps of a seed, in order: name, which is that of a folder, and command."""
    runs = args.runs / f"seed-{seed}"
    trained, tuned, before, after = (str(runs / name) for name in ("sft", "grpo", "before", "after"))
    data, service = str(args.data), ["--evaluation", "dedicated", "--evaluation_url", url]
    limit = [] if max_minutes is None else ["--max_minutes", f"{max_minutes:.2f}"]

    def recipe(name: str, config: Path, more: str, *options: str) -> list[str]:
        start = [sys.executable, "-m", f"pkb_gym.training.{name}", "--config", str(config), "--seed", str(seed)]
        return [*start, *options, *shlex.split(more)]

    def evaluate(model: str, output: str, *options: str) -> list[str]:
        requested = ("--prompts", data, "--model_name_or_path", model, "--output", output, *service, *options)
        return recipe("evaluate_policy", args.evaluate_config, args.evaluate, *requested)

    practise = ("--prompts", data, "--model_name_or_path", trained, "--output_dir", tuned, *service, *limit)
    return {
        "sft": recipe("sft", args.sft_config, args.sft, "--corpus", data, "--output_dir", trained),
        "before": evaluate(trained, before),
        "grpo": recipe("grpo", args.grpo_config, args.grpo, *practise),
        "after": evaluate(tuned, after, "--compare", f"{before}/results.jsonl"),
    }


class Chain:
    """The steps of one seed, as processes.

    Args:
        args: of this benchmark.
        seed: of all its steps.
        service: that evaluates.
        gpu: entry of CUDA_VISIBLE_DEVICES; None on the CPU.
        cores: processors to which training on the CPU is bound; None for one thread wherever it finds room.
        deadline: by the monotonic clock; None for no limit.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        seed: int,
        service: ServiceProcess,
        gpu: str | None,
        cores: Sequence[int] | None,
        deadline: float | None,
    ) -> None:
        self._args, self._seed, self._service, self._deadline = args, seed, service, deadline
        self._gpu, self._cores = gpu, cores
        self._folder = args.runs / f"seed-{seed}"

    def run(self) -> None:
        """Runs what is not finished, until something fails or the time is up."""
        for name in self._args.steps:
            finished = self._folder / f"{name}.finished.json"
            if finished.exists():
                continue
            left_s = None if self._deadline is None else self._deadline - time.monotonic()
            if left_s is not None and left_s <= SPARE_S:
                return
            minutes = None if left_s is None else (left_s - SPARE_S) / 60
            command = commands(self._args, self._seed, self._service.url, minutes)[name]
            began = time.monotonic()
            status = self._process(name, command, left_s)
            took_s = time.monotonic() - began
            print(f"seed {self._seed}: {name} ended with status {status} after {took_s:.0f} s", file=sys.stderr)
            if status != 0 or (name == "grpo" and not self._grpo_is_done()):
                return
            write_atomically(finished, json.dumps({"command": self._shown(command), "last_start_s": round(took_s, 1)}))

    def _process(self, name: str, command: Sequence[str], left_s: float | None) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            try:
                bound, own = [*self._binding(), *command], self._environment()
                ended = subprocess.run(bound, env=own, stdout=log, stderr=log, timeout=left_s, check=False)
                return ended.returncode
            except subprocess.TimeoutExpired:
                return -1

    def _binding(self) -> list[str]:
        """The beginning of a command that runs on the cores of this seed."""
        return [] if self._cores is None else ["taskset", "--cpu-list", ",".join(map(str, self._cores))]

    def _environment(self) -> Mapping[str, str]:
        own = {"PKB_TOKEN": self._service.token, "TOKENIZERS_PARALLELISM": "false"}
        if self._gpu is not None:
            own["CUDA_VISIBLE_DEVICES"] = self._gpu
        else:
            own |= {"OMP_NUM_THREADS": str(1 if self._cores is None else len(self._cores)), "CUDA_VISIBLE_DEVICES": ""}
        return os.environ | own

    def _grpo_is_done(self) -> bool:
        """Whether it ended by itself, and not for its time."""
        state = json.loads((self._folder / "grpo" / "trainer_state.json").read_bytes())
        return bool(state["global_step"] >= state["max_steps"])

    def _shown(self, command: Sequence[str]) -> str:
        """The command without what only holds here."""
        words = ["python", *command[1:]]
        for option in ("--evaluation_url", "--max_minutes"):
            if option in words:
                place = words.index(option)
                del words[place : place + 2]
        names = {str(self._args.data): "DATA", str(self._args.runs): "RUNS", str(CONFIGS): "training/configs"}
        shown = shlex.join(words)
        for path, name in names.items():
            shown = shown.replace(path, name)
        return shown


def share_out_cores(training: int, seeds: int) -> list[list[int]]:
    """Cores for each seed, from the last that this process may use; the process keeps the others, for evaluations."""
    mine = sorted(os.sched_getaffinity(0))
    if not seeds <= training < len(mine):
        raise SystemExit(f"--training-cores {training}: {seeds} seeds need one each, and of {len(mine)} one evaluates")
    os.sched_setaffinity(0, mine[:-training])
    each = training // seeds
    return [mine[-training:][place * each : (place + 1) * each] for place in range(seeds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, evaluates and saves; or renders what was saved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=main.__doc__)
    parser.add_argument("--data", type=Path, help="folder of `pkb export prompts` and `pkb export corpus`")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="folder of models and logs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--training-gpus", nargs="+", help="seeds take turns at them; left out for the CPU")
    parser.add_argument("--evaluation-gpus", nargs="+", help="of the evaluation service")
    parser.add_argument(
        "--training-cores", type=int, metavar="N", help="on the CPU: the last N cores train, the others evaluate"
    )
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="only these (default: all)")
    parser.add_argument("--minutes", type=float, help="time limit; the same command goes on")
    for recipe, config in (("sft", "sft_scratch"), ("grpo", "grpo_scratch"), ("evaluate", "evaluate")):
        parser.add_argument(f"--{recipe}-config", type=Path, default=CONFIGS / f"{config}.yaml")
        parser.add_argument(f"--{recipe}", default="", metavar="ARGUMENTS", help=f"further arguments of {recipe}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--render", type=Path, metavar="RESULT", help="print the tables of a result")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --render: draw its curves")
    args = parser.parse_args(argv)
    if args.render:
        result = json.loads(args.render.read_bytes())
        print(markdown(result))
        if args.svg:
            draw(result, args.svg)
        return 0
    if args.data is None:
        parser.error("--data is needed")
    deadline = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    about = header() | {"gpus": list(gpus.names())}
    cores = share_out_cores(args.training_cores, len(args.seeds)) if args.training_cores else [None] * len(args.seeds)
    service, busy, began = (
        ServiceProcess(args.evaluation_gpus if args.training_gpus else None),
        GpuSampler(),
        time.monotonic(),
    )
    try:
        training_gpus: list[str | None] = list(args.training_gpus or [None])
        chains = [
            Chain(args, seed, service, training_gpus[place % len(training_gpus)], cores[place], deadline)
            for place, seed in enumerate(args.seeds)
        ]
        threads = [threading.Thread(target=chain.run) for chain in chains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        service.close()
        busy.close()
        args.runs.mkdir(parents=True, exist_ok=True)
        with LineFile(args.runs / GPUS_BUSY, holds="GPU loads", writer="benchmarks.learning", option="--runs") as lines:
            lines.append(json.dumps({"wall_s": round(time.monotonic() - began, 1), "shares": busy.means()}))
    result = about | collect(args.data, args.runs, args.seeds)
    write_atomically(args.out / f"{NAME}.json", json.dumps(result, indent=1) + "\n")
    print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
