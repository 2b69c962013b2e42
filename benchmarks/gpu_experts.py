"""Every expert kernel for GPUs against the baseline, and three of them along the sweeps that published kernels report.

The baseline is timed as it is and, where it can be captured, as CUDA graphs. Kernels that people use for what a problem
asks are judged beside the expert, as candidates (benchmarks/rivals/).

python -m benchmarks.gpu_experts [--only NAME ...] [--sizes ...] [--world-sizes ...] [--no-sweeps] [--out FOLDER]
                                 [--limit-s S] [--resume]
python -m benchmarks.gpu_experts --render FOLDER/gpu_experts.json [--only NAME ...] [--svg FILE]    prints its tables,
                                                                                                    draws its sweeps
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.common import RESULTS, header
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, problem_folder

SIZES = ("tiny", "published", "large")
SWEEPS: dict[str, dict[str, dict[str, Any]]] = {
    "HyenaCP": {f"l={n}": {"l": n} for n in (1024, 2048, 8192, 16384)},
    "VocabParallelLogProb": {
        f"M={n}": {"B": 1, "S": n, "V": 32000, "top_k": 10, "top_p": 0.9} for n in (1024, 2048, 4096, 8192, 16384)
    },
    "SAM3IoUSuppression": {
        f"N={n}": {"Hm": 256, "Wm": 256, "num_obj_per_gpu": (n // 4,) * 4, "iou_threshold": 0.7}
        for n in (16, 32, 64, 128, 256, 512)
    },
}
"""Four ranks; axes replace those of size "published"."""

PUBLISHED_BEST = {"HyenaCP": 1.72, "VocabParallelLogProb": 2.06, "SAM3IoUSuppression": 1.40}
"""Best speedups that were published for kernels of these sweeps, on four H100."""

RIVALS = Path(__file__).resolve().parent / "rivals"
"""One folder for each problem that has some, one file for each."""

EXPERT = "expert"
"""The name of the kernel of a row that is the problem's expert; others are files of `RIVALS`."""

COMPILE_TIMEOUT_S = 600.0

EXCEPTION = re.compile(r"(rank \d+: )?[\w.]+(Error|Exception): ")
"""The beginning of a line that names an exception."""


@dataclass(frozen=True)
class Run:
    """One evaluation.

    Attributes:
        problem: Problem that is solved.
        kernel: `EXPERT`, or the name of a rival.
        source: Text of the kernel.
        size: Name of the size, or label in the sweep.
        config: Settings of the evaluation.
    """

    problem: Problem
    kernel: str
    source: str
    size: str
    config: EvalConfig

    @property
    def labels(self) -> dict[str, Any]:
        """The part of a row that names the run."""
        world_size = self.config.world_size
        return {"problem": self.problem.name, "kernel": self.kernel, "size": self.size, "world_size": world_size}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves, or renders what was saved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_experts", description=main.__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="problems (default: all that have an expert)")
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--world-sizes", nargs="+", type=int, default=None, help="default: 4, 2, 1, as GPUs allow")
    parser.add_argument("--no-sweeps", action="store_true")
    parser.add_argument("--budget-s", type=float, default=1.5, help="timing of each (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no evaluation begins after this")
    parser.add_argument("--resume", action="store_true", help="add to the rows of the same commit in --out")
    parser.add_argument("--threads", type=int, default=processors(), help="compilers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the tables of a result")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --render: draw the sweeps")
    args = parser.parse_args(argv)
    if args.render is not None:
        saved = json.loads(args.render.read_text())["rows"]
        saved = [row for row in saved if args.only is None or row["problem"] in args.only]
        print(markdown(saved), "", means(saved), sep="\n")
        if args.svg is not None:
            draw(saved, args.svg)
        return 0
    present = len(gpus.names())
    if not present:
        print("no NVIDIA GPU on this machine", file=sys.stderr)
        return 3
    end_s = time.monotonic() + args.limit_s
    world_sizes = args.world_sizes or [n for n in (4, 2, 1) if n <= present]
    problems = [find_problem(name) for name in args.only] if args.only else catalogue()
    problems = [problem for problem in problems if expert_source(problem, "cu")]
    about = header() | {"gpus": list(gpus.names()), "driver": gpus.driver_version()}
    path = args.out / "gpu_experts.json"
    rows = resumed(path, about["commit"]) if args.resume else []
    planned = list(runs(problems, args.sizes, world_sizes, not args.no_sweeps and present >= 4, args.budget_s))
    planned = [run for run in planned if not any(run.labels.items() <= row.items() for row in rows)]
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, planned, args.threads)
        for done, run in enumerate(planned):
            if time.monotonic() > end_s:
                print(f"{len(planned) - done} of {len(planned)} are missing: go on with --resume", file=sys.stderr)
                break
            rows.append(run.labels | judged(evaluator, run))
            print(rows[-1], file=sys.stderr, flush=True)
            write_atomically(path, row_json(about | {"rows": rows}))
    print(markdown(rows), "", means(rows), sep="\n")
    return 0


def judged(evaluator: Evaluator, run: Run) -> dict[str, Any]:
    """The figures of a run; why there are none where this machine refuses it, as one without enough memory."""
    try:
        return measured(evaluator.evaluate(run.problem, run.source, run.config))
    except ConfigError as error:
        return {"passed": False, "failure": "refused", "message": cause(str(error))}


def resumed(path: Path, commit: str) -> list[dict[str, Any]]:
    """The rows that an earlier run of this commit has left."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = earlier["rows"] if earlier["commit"] == commit else []
    return rows


def compile_all(evaluator: LocalEvaluator, planned: Sequence[Run], threads: int) -> None:
    """Fills the compile cache, several at a time."""

    def compile_one(run: Run) -> None:
        row = judged(evaluator, replace(run, config=run.config.model_copy(update={"until": "compile"})))
        if row.get("failure") is not None:
            print(f"{run.problem.name}, {run.kernel}: {row['message']}", file=sys.stderr)

    kernels = {run.source: run for run in planned if is_native(run.source, "cuda")}
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compile_one, kernels.values()))


def is_native(source: str, device: Device) -> bool:
    """Whether a source is of the native dialect."""
    return Source.parse(source, device).language in ("cpp", "cuda")


def runs(
    problems: Sequence[Problem], sizes: Sequence[str], world_sizes: Sequence[int], sweeps: bool, budget_s: float
) -> Iterator[Run]:
    """All evaluations, those of most ranks first."""
    for world_size in world_sizes:
        for problem in problems:
            for kernel, source in kernels_of(problem, world_size).items():
                for size in sizes:
                    yield Run(problem, kernel, source, size, _config(world_size, size, budget_s))
    for problem in problems if sweeps else ():
        source = kernels_of(problem, 4)[EXPERT]
        for label, axes in SWEEPS.get(problem.name, {}).items():
            yield Run(problem, EXPERT, source, label, _config(4, axes, budget_s))


def kernels_of(problem: Problem, world_size: int) -> dict[str, str]:
    """The expert and its rivals, of which one rank has none."""
    expert = expert_source(problem, "cu")
    assert expert is not None, problem.name
    folder = RIVALS / problem_folder(problem).name
    rivals = sorted(path for path in folder.glob("*") if path.suffix in (".py", ".cu")) if world_size > 1 else []
    return {EXPERT: expert} | {path.stem: path.read_text(encoding="utf-8") for path in rivals}


def _config(world_size: int, size: str | dict[str, Any], budget_s: float) -> EvalConfig:
    return EvalConfig(
        device="cuda",
        world_size=world_size,
        size=size,
        until="time",
        timing_budget_s=budget_s,
        compile_timeout_s=COMPILE_TIMEOUT_S,
        race_check="off",  # the emulator judges the same kernels elsewhere; here they are timed
    )


def cause(message: str) -> str:
    """The line of a message that says what happened: the last that names an exception, or the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    named = [line for line in lines if EXCEPTION.match(line)]
    return (named[-1] if named else lines[0])[:500]


def measured(feedback: Feedback) -> dict[str, Any]:
    """The figures of one evaluation."""
    if feedback.timing is None or feedback.roofline is None:
        return {"passed": False, "failure": feedback.failure, "message": cause(feedback.message)}
    timing, roofline = feedback.timing, feedback.roofline
    captured, registered = timing.baseline_graph_us, timing.baseline_registered_us
    return {
        "passed": feedback.passed,
        "findings": [finding.code for finding in feedback.integrity],
        "baseline_us": round(timing.baseline_us, 1),
        "baseline_graph_us": None if captured is None else round(captured, 1),
        "baseline_registered_us": registered and round(registered, 1),
        "candidate_us": round(timing.candidate_us, 1),
        "speedup": round(timing.speedup, 3),
        "speedup_low": round(timing.speedup_low, 3),
        "speedup_captured": None if captured is None else round(captured / timing.candidate_us, 3),
        "speedup_registered": registered and round(registered / timing.candidate_us, 3),
        "ceiling_us": round(roofline.ceiling_us, 2),
        "binds": roofline.binds,
        "utilisation": None if roofline.candidate_utilisation is None else round(roofline.candidate_utilisation, 3),
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table by problem, kernel and world size, and one of the sweeps."""
    lines = ["| problem | kernel | ranks | tiny | published | large |", "| --- | --- | --- | --- | --- | --- |"]
    named = [row for row in rows if row["size"] in SIZES]
    for key in dict.fromkeys(_key(row) for row in named):
        cells = {row["size"]: _cell(row) for row in named if _key(row) == key}
        labels = " | ".join(str(label) for label in key)
        lines.append(f"| {labels} | " + " | ".join(cells.get(size, "-") for size in SIZES) + " |")
    swept = [row for row in rows if row["size"] not in SIZES]
    if swept:
        lines += ["", "| sweep | point | baseline, us | captured, us | kernel, us | speedup | roofline |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for row in swept:
            if row["passed"]:
                captured = "-" if row["baseline_graph_us"] is None else row["baseline_graph_us"]
                times = f"{row['baseline_us']} | {captured} | {row['candidate_us']}"
                times += f" | {row['speedup']} ({row['speedup_low']})"
                lines.append(f"| {row['problem']} | {row['size']} | {times} | {_share(row)} |")
            else:
                lines.append(f"| {row['problem']} | {row['size']} | - | - | - | {row.get('failure')} | - |")
    return "\n".join(lines)


def means(rows: Sequence[dict[str, Any]]) -> str:
    """A table of experts that passed: geometric means over problems, and how many reach what."""
    lines = [
        "| ranks | size | problems | over eager | over the better baseline | lower end above it | half of roofline |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    passed = [row for row in rows if row["passed"] and row["kernel"] == EXPERT and row["size"] in SIZES]
    for world_size, size in dict.fromkeys((row["world_size"], row["size"]) for row in passed):
        here = [row for row in passed if (row["world_size"], row["size"]) == (world_size, size)]
        eager, better = (geometric_mean(values) for values in ((row["speedup"] for row in here), map(_gain, here)))
        ahead = sum(_gain(row) * row["speedup_low"] > row["speedup"] for row in here)
        bound = [row["utilisation"] or 0.0 for row in here if row["binds"] in ("link", "memory")]
        half = f"{sum(share >= 0.5 for share in bound)} of {len(bound)}"
        lines.append(f"| {world_size} | {size} | {len(here)} | {eager:.1f} | {better:.1f} | {ahead} | {half} |")
    return "\n".join(lines)


def _gain(row: dict[str, Any]) -> float:
    """The speedup over the better of the eager and the captured baseline."""
    gain: float = min(row["speedup"], row["speedup_captured"] or row["speedup"])
    return gain


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["problem"], row["kernel"], row["world_size"]


def _cell(row: dict[str, Any]) -> str:
    """Speedups over the eager baseline, with the lower end of its interval, and over the captured; time; share."""
    if not row["passed"]:
        return str(row.get("failure") or row.get("findings"))
    captured = "-" if row["speedup_captured"] is None else f"{row['speedup_captured']:.2f}"
    return f"{row['speedup']:.2f} ({row['speedup_low']:.2f}), {captured}, {row['candidate_us']:g} us, {_share(row)}"


def _share(row: dict[str, Any]) -> str:
    return "-" if row["utilisation"] is None else f"{100 * row['utilisation']:.0f} %"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The sweeps as one picture: speedup over the sweep, with the best that was published."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SWEEPS), figsize=(12, 3.2), layout="constrained")
    for panel, (name, best) in zip(panels, PUBLISHED_BEST.items(), strict=True):
        points = [row for row in rows if row["problem"] == name and "=" in row["size"] and row["passed"]]
        x = [int(row["size"].partition("=")[2]) for row in points]
        panel.plot(x, [row["speedup"] for row in points], "o-", label="expert.cu")
        panel.axhline(best, color="0.4", linestyle="--", label=f"published best, {best}")
        panel.axhline(1, color="0.7")
        panel.set(title=name, xscale="log", ylim=(0, None), xlabel=next(iter(SWEEPS[name])).partition("=")[0])
        panel.set_xticks(x, [str(n) for n in x])
        panel.minorticks_off()
        panel.legend()
    panels[0].set_ylabel("speedup over the baseline")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
