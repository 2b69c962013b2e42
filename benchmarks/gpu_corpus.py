"""Variants of the kernel families on GPUs: how many are right, how far their speeds spread, how broken ones fail.

python -m benchmarks.gpu_corpus [--only NAME ...] [--variants N] [--size NAME] [--world-size N] [--breakages N]
                                [--out FOLDER]
python -m benchmarks.gpu_corpus --render FOLDER/gpu_corpus.json    prints its table
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import RESULTS, header
from pkb_gym.corpus.conversations import Trajectory, broken_trajectories, sampled_variants
from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import default_world_size
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.kernels import CORPUS_FAMILIES
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards import find_reward

REWARD = find_reward("default")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves, or renders what was saved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_corpus", description=main.__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="problems (default: all with a CUDA family)")
    parser.add_argument("--variants", type=int, default=16, help="of each problem (default: %(default)s)")
    parser.add_argument("--breakages", type=int, default=9, help="broken ones of each problem (default: %(default)s)")
    parser.add_argument("--size", default="published")
    parser.add_argument("--dtype", help="default: the problem's first")
    parser.add_argument("--world-size", type=int, help="default: 1, 2, 4 or 8, as GPUs allow")
    parser.add_argument("--budget-s", type=float, default=0.3, help="timing of each (default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, default=3.0, help="of a block of calls (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=16, help="evaluations at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the table of a result")
    args = parser.parse_args(argv)
    if args.render is not None:
        print(markdown(json.loads(args.render.read_text())["rows"]))
        return 0
    present = len(gpus.names())
    if not present:
        print("no NVIDIA GPU on this machine", file=sys.stderr)
        return 3
    world_size = args.world_size or default_world_size(present)
    names = args.only or sorted(name for name, language in CORPUS_FAMILIES if language == "cuda")
    about = header() | {"gpus": list(gpus.names()), "driver": gpus.driver_version(), "world_size": world_size}
    rows: list[dict[str, Any]] = []
    with LocalEvaluator() as evaluator, ThreadPoolExecutor(args.jobs) as pool:
        for name in names:
            trajectories = planned(name, world_size, args)
            for trajectory, feedback in zip(
                trajectories, pool.map(lambda a: judged(evaluator, a, args), trajectories), strict=True
            ):
                rows.append(measured(trajectory, feedback))
                print(rows[-1], file=sys.stderr, flush=True)
            write_atomically(args.out / "gpu_corpus.json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
    print(markdown(rows))
    return 0


def planned(name: str, world_size: int, args: argparse.Namespace) -> list[Trajectory]:
    """The variants of one problem that are tried, and ways to break them."""
    dtype = args.dtype or find_problem(name).dtypes[0]
    task = Task(name, "cuda", world_size, args.size, dtype, args.seed, "brief")
    variants = sampled_variants(name, "cuda", args.variants, args.seed)
    good = [Trajectory(task, variant, (variant.source,)) for variant in variants]
    return good + list(broken_trajectories(good, args.breakages, args.seed, only_compiled=False))


def judged(evaluator: LocalEvaluator, trajectory: Trajectory, args: argparse.Namespace) -> Feedback:
    """The feedback on the first submission of a trajectory."""
    config = trajectory.task.config(until="time", timing_budget_s=args.budget_s, timeout_s=args.timeout_s)
    return evaluator.evaluate(find_problem(trajectory.task.problem), trajectory.sources[0], config)


def measured(trajectory: Trajectory, feedback: Feedback) -> dict[str, Any]:
    """The figures of one evaluation."""
    row: dict[str, Any] = {
        "problem": trajectory.task.problem,
        "size": trajectory.task.size,
        "dtype": trajectory.task.dtype,
        "knobs": dict(trajectory.variant.knobs),
        "breakage": "+".join(trajectory.breakages) or None,
        "passed": feedback.passed,
        "failure": feedback.failure,
        "findings": [finding.code for finding in feedback.integrity],
        "reward": REWARD(feedback),
    }
    if feedback.timing is not None:
        row |= {"candidate_us": round(feedback.timing.candidate_us, 2), "speedup": round(feedback.timing.speedup, 3)}
    return row if feedback.passed else row | {"message": feedback.message[:400]}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Tables by problem and by breakage: right variants, their speedups and rewards, and how broken ones failed."""
    lines = [
        "| problem | right | speedup: least, median, most | reward: least, most | broken | of these fail |",
        "| --- | ---: | --- | --- | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["problem"] for row in rows):
        mine = [row for row in rows if row["problem"] == name]
        variants, broken = ([row for row in mine if bool(row["breakage"]) is is_broken] for is_broken in (False, True))
        right = [row for row in variants if row["passed"] and not row["findings"]]
        speeds, rewards = [row["speedup"] for row in right], [row["reward"] for row in right]
        speed = f"{min(speeds):.2f}, {median(speeds):.2f}, {max(speeds):.2f}" if right else "-"
        reward = f"{min(rewards):.2f}, {max(rewards):.2f}" if right else "-"
        failed = sum(not row["passed"] for row in broken)
        lines.append(f"| {name} | {len(right)} of {len(variants)} | {speed} | {reward} | {len(broken)} | {failed} |")
    lines += ["", "| breakage | sources | of these fail | failures |", "| --- | ---: | ---: | --- |"]
    for breakage in sorted({row["breakage"] for row in rows} - {None}):
        mine = [row for row in rows if row["breakage"] == breakage]
        failures = Counter(str(row["failure"]) for row in mine if not row["passed"])
        named = ", ".join(f"{failure} {count}" for failure, count in failures.most_common())
        lines.append(f"| {breakage} | {len(mine)} | {failures.total()} | {named or '-'} |")
    wrong = [row for row in rows if row["breakage"] is None and not (row["passed"] and not row["findings"])]
    lines += [f"\n{row['problem']} {row['knobs']}: {row['failure']} {row.get('message', '')}" for row in wrong]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
