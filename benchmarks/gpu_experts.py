"""Every expert kernel for GPUs against the baseline, and three of them along the sweeps that published kernels report.

python -m benchmarks.gpu_experts [--only NAME ...] [--sizes ...] [--world-sizes ...] [--no-sweeps] [--out FOLDER]
python -m benchmarks.gpu_experts --render FOLDER/gpu_experts.json [--svg FILE]    prints its tables, draws its sweeps
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

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

COMPILERS = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves, or renders what was saved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_experts", description=main.__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="problems (default: all that have an expert)")
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--world-sizes", nargs="+", type=int, default=None, help="default: 1, 2, 4, as GPUs allow")
    parser.add_argument("--no-sweeps", action="store_true")
    parser.add_argument("--budget-s", type=float, default=1.5, help="timing of each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the tables of a result")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --render: draw the sweeps")
    args = parser.parse_args(argv)
    if args.render is not None:
        saved = json.loads(args.render.read_text())["rows"]
        print(markdown(saved))
        if args.svg is not None:
            draw(saved, args.svg)
        return 0
    present = len(gpus.names())
    if not present:
        print("no NVIDIA GPU on this machine", file=sys.stderr)
        return 3
    world_sizes = args.world_sizes or [n for n in (1, 2, 4) if n <= present]
    problems = [find_problem(name) for name in args.only] if args.only else catalogue()
    problems = [problem for problem in problems if expert_source(problem, "cu")]
    about = header() | {"gpus": list(gpus.names()), "driver": gpus.driver_version()}
    rows: list[dict[str, Any]] = []
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, problems)
        sweeps = not args.no_sweeps and present >= 4
        for problem, label, config in runs(problems, args.sizes, world_sizes, sweeps, args.budget_s):
            source = expert_source(problem, "cu")
            assert source is not None
            rows.append({"problem": problem.name, "size": label, "world_size": config.world_size})
            rows[-1] |= measured(evaluator.evaluate(problem, source, config))
            print(rows[-1], file=sys.stderr, flush=True)
            write_atomically(args.out / "gpu_experts.json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
    print(markdown(rows))
    return 0


def compile_all(evaluator: LocalEvaluator, problems: Sequence[Problem]) -> None:
    """Fills the compile cache, several at a time."""

    def compile_one(problem: Problem) -> None:
        source = expert_source(problem, "cu")
        assert source is not None
        feedback = evaluator.evaluate(problem, source, EvalConfig(device="cuda", size="tiny", until="compile"))
        if feedback.failure is not None:
            print(f"{problem.name}: {feedback.message}", file=sys.stderr)

    with ThreadPoolExecutor(COMPILERS) as pool:
        list(pool.map(compile_one, problems))


def runs(
    problems: Sequence[Problem], sizes: Sequence[str], world_sizes: Sequence[int], sweeps: bool, budget_s: float
) -> Iterator[tuple[Problem, str, EvalConfig]]:
    """What is evaluated: problem, label of the size, configuration."""
    for problem in problems:
        for world_size in world_sizes:
            for size in sizes:
                yield problem, size, _config(world_size, size, budget_s)
        if sweeps:
            for label, axes in SWEEPS.get(problem.name, {}).items():
                yield problem, label, _config(4, axes, budget_s)


def _config(world_size: int, size: str | dict[str, Any], budget_s: float) -> EvalConfig:
    return EvalConfig(device="cuda", world_size=world_size, size=size, until="time", timing_budget_s=budget_s)


def measured(feedback: Feedback) -> dict[str, Any]:
    """The figures of one evaluation."""
    if feedback.timing is None or feedback.roofline is None:
        return {"passed": False, "failure": feedback.failure, "message": feedback.message[:500]}
    timing, roofline = feedback.timing, feedback.roofline
    return {
        "passed": feedback.passed,
        "findings": [finding.code for finding in feedback.integrity],
        "baseline_us": round(timing.baseline_us, 1),
        "candidate_us": round(timing.candidate_us, 1),
        "speedup": round(timing.speedup, 3),
        "speedup_low": round(timing.speedup_low, 3),
        "bound_us": round(roofline.bound_us, 2),
        "binds": roofline.binds,
        "utilisation": None if roofline.candidate_utilisation is None else round(roofline.candidate_utilisation, 3),
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table by problem and world size, and one of the sweeps."""
    lines = ["| problem | ranks | tiny | published | large |", "| --- | --- | --- | --- | --- |"]
    named = [row for row in rows if row["size"] in SIZES]
    for key in dict.fromkeys((row["problem"], row["world_size"]) for row in named):
        cells = {row["size"]: _cell(row) for row in named if (row["problem"], row["world_size"]) == key}
        lines.append(f"| {key[0]} | {key[1]} | " + " | ".join(cells.get(size, "-") for size in SIZES) + " |")
    swept = [row for row in rows if row["size"] not in SIZES]
    if swept:
        lines += ["", "| sweep | point | baseline, us | kernel, us | speedup | roofline |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for row in swept:
            if row["passed"]:
                times = f"{row['baseline_us']} | {row['candidate_us']} | {row['speedup']} ({row['speedup_low']})"
                lines.append(f"| {row['problem']} | {row['size']} | {times} | {100 * row['utilisation']:.0f} % |")
            else:
                lines.append(f"| {row['problem']} | {row['size']} | - | - | {row.get('failure')} | - |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    """Speedup with the lower end of its interval, the kernel's time, its share of the roofline."""
    if not row["passed"]:
        return str(row.get("failure") or row.get("findings"))
    share = f"{100 * row['utilisation']:.0f} %" if row["utilisation"] is not None else "-"
    return f"{row['speedup']:.2f} ({row['speedup_low']:.2f}), {row['candidate_us']:g} us, {share}"


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
