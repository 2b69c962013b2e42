"""Every expert without one of its synchronisations, and the unchanged experts, each judged many times.

A mutant counts as refused if it does not pass the evaluation that a training run would give it. Where an operation is
not come to at any of the sizes, its mutant is not judged; the size `further` stands for those of `mutant_sizes`, at
which kernels take their other paths. Evaluations are added to those of an earlier run of the same commit; so a run can
be cut off and done in parts. Several evaluators can work side by side: until `check` they wait most of the time, for
deadlines and for ranks that are late on purpose. Those on GPUs share all of them.

python -m benchmarks.mutants [--device cpu|cuda] [--world-size N] [--sizes tiny ...] [--problems NAME ...]
                             [--mutants N] [--experts N ...] [--fences] [--jobs N] [--budget-s S] [--out FOLDER]
python -m benchmarks.mutants --missing-in FILE ...    only mutants that another result has no evaluation of
python -m benchmarks.mutants --device cuda --ranks-per-gpu N --sizes-of FILE ...     ranks share GPUs, until `check`
python -m benchmarks.mutants --merge FILE ... [--out FOLDER]   puts results together; adds up those of the same kernel

Exit status: 0 if every wrong mutant was refused and no expert was, else 1; 3 without the GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.common import RESULTS, gpus_in_name, header, unfinished
from benchmarks.mutant_rows import Row, load, merge
from benchmarks.mutant_study import Study, assumed_sizes, evaluated, in_order, in_turn, known_sizes, side_by_side
from benchmarks.synchronisation import InlinedSource
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem


def main(argv: Sequence[str] | None = None) -> int:
    """Judges what is lacking and saves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=main.__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, help="ranks (default: 4, or every GPU)")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "published"])
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all that have an expert")
    parser.add_argument("--mutants", type=int, default=20, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument(
        "--experts",
        type=int,
        nargs="+",
        default=[200],
        metavar="N",
        help="at each size; the last N is for all that follow (default: 200)",
    )
    parser.add_argument("--experts-only", action="store_const", const=0, dest="mutants", help="as --mutants 0")
    parser.add_argument("--fences", action="store_true", help="judge mutants without fences too")
    parser.add_argument("--until", choices=("check", "time"), default="time", help="last stage (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="evaluators side by side (default: 1)")
    parser.add_argument("--ranks-per-gpu", type=int, default=1, metavar="N", help="needs the sizes (default: 1)")
    looks = parser.add_mutually_exclusive_group()
    looks.add_argument("--sizes-of", type=Path, metavar="FILE", help="sizes of mutants as in this result")
    looks.add_argument("--assume-reached", action="store_true", help="judge all mutants at the first size")
    parser.add_argument("--missing-in", type=Path, metavar="FILE", help="only mutants that this result did not judge")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="no evaluation begins after this")
    parser.add_argument("--threads", type=int, default=processors(), help="compilers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args(argv)
    if args.merge:
        merge(args.merge, args.out)
        return 0
    shared = args.ranks_per_gpu > 1
    if shared and args.sizes_of is None and not args.assume_reached:
        parser.error(f"--ranks-per-gpu {args.ranks_per_gpu}: the look for sizes is timed; give --sizes-of FILE too")
    if args.until == "time" and (shared or args.jobs > 1):
        parser.error(f"--jobs {args.jobs}: evaluators side by side disturb each other's timing; give --until check too")
    until_s = time.monotonic() + args.budget_s
    world_size = args.world_size or (len(gpus.names()) * args.ranks_per_gpu if args.device == "cuda" else 4)
    wanted_gpus = -(-world_size // args.ranks_per_gpu)
    if args.device == "cuda" and not 0 < wanted_gpus <= len(gpus.names()):
        print(f"{wanted_gpus} GPUs wanted, {len(gpus.names())} on this machine", file=sys.stderr)
        return 3
    suffix = {"cpu": "cpp", "cuda": "cu"}[args.device]
    problems = [find_problem(name) for name in args.problems] if args.problems else catalogue()
    problems = [problem for problem in problems if expert_source(problem, suffix)]
    on_gpus = f"mutants_{gpus_in_name(world_size, args.ranks_per_gpu)}.json"
    path = args.out / ("mutants.json" if args.device == "cpu" else on_gpus)
    about = {"device": args.device, "world_size": world_size, "sizes": args.sizes, "until": args.until}
    if args.device == "cuda":
        about |= {"gpus": list(gpus.names()), "ranks_per_gpu": args.ranks_per_gpu}
    with LocalEvaluator() as evaluator:
        earlier = unfinished(path) or {"rows": (), "sizes": ()}
        rows = [Row(**row) for row in earlier["rows"]]
        looked_at = load(args.sizes_of) if args.sizes_of else rows if list(earlier["sizes"]) == args.sizes else []
        known = assumed_sizes(problems, suffix, args.sizes) if args.assume_reached else known_sizes(looked_at)
        left_out = evaluated(load(args.missing_in)) if args.missing_in else set()
        sharing = args.ranks_per_gpu, args.jobs
        study = Study(evaluator, args.device, world_size, args.sizes, args.until, rows, known, *sharing)

        def save() -> None:
            rows = [asdict(row) for row in study.rows]
            write_atomically(path, json.dumps(header() | about | {"rows": rows}, indent=1) + "\n")

        if not (args.sizes_of or args.assume_reached):
            compile_reports(evaluator, problems, suffix, args.threads)
        wanted = args.mutants, args.experts, args.fences, left_out
        work = [judged for problem in problems for judged in study.prepare(problem, *wanted)]
        print(f"{len(work)} sources", file=sys.stderr)
        verdicts = partial(side_by_side, args.jobs) if args.jobs > 1 else partial(in_turn, evaluator)
        with ThreadPoolExecutor(args.threads) as compilers:
            compiles = study.compile(work, compilers)
            if args.jobs > 1:  # they would take the processors of ranks that several evaluators wait for
                wait(compiles)
            for part in in_order(work, args.sizes):
                study.judge(part, verdicts, until_s, save)
            compilers.shutdown(cancel_futures=True)
    unexpected = [row for row in study.rows if not row.is_as_expected]
    for row in unexpected:
        print(f"{row.problem}, {row.mutant or 'expert'}, {row.size}: {row.refused} of {row.evaluations} refused")
    print(f"{sum(row.is_wrong and row.size is not None for row in study.rows)} wrong mutants; saved to {path}")
    return 1 if unexpected else 0


def compile_reports(evaluator: LocalEvaluator, problems: Sequence[Problem], suffix: str, threads: int) -> None:
    """Fills the compile cache with the kernels that report the operations that they reach."""

    def compile_one(problem: Problem) -> None:
        source = InlinedSource.of(expert_source(problem, suffix) or "")
        config = EvalConfig(device={"cpp": "cpu", "cu": "cuda"}[suffix], until="compile", compile_timeout_s=600)
        if source.operations():
            evaluator.evaluate(problem, source.reporting(), config)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compile_one, problems))


if __name__ == "__main__":
    sys.exit(main())
