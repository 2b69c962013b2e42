"""The mutants of a result on emulated GPUs, and the unchanged experts, on GPUs: how many of them a GPU shows.

Of each so many evaluations, the first of few calls: a mutant that waits for a word that never comes costs the deadline
of these alone. Compilers work on the mutants that follow meanwhile, and several gangs judge side by side. What gangs do
on one GPU takes turns there, as their ranks do where they share it; deadlines are many times as long as the calls take,
and the experts, which pass, are judged under the same conditions.

python -m benchmarks.emulated_mutants_on_gpus [--of FILE] [--ranks-per-gpu N] [--calls N ...] [--problems NAME ...]
                                              [--gangs N] [--jobs N] [--budget-s S] [--out FOLDER]

A run goes on where an earlier one ended: rows of the same sources stay, with the commit that they were judged with.
Exit status: 0 if every expert passed and all were judged, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore

from benchmarks.common import RESULTS, commit, gpus_in_name, header, make_parser
from benchmarks.emulated_mutants import COMPILE_TIMEOUT_S, Judged, Row, experts, judge, load, markdown, mutants_of, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

TIMEOUT_S = 2.0
"""Deadline of a block of calls, which takes milliseconds; the evaluation adds what its delays of ranks may take."""
CALLS = (14, 86)
GANGS = 3


def operation_of(row: Row) -> tuple[str, str, str]:
    """The operation of a mutant: problem, kind and name."""
    return row.problem, row.kind, row.mutant


def chosen(of: Sequence[Row], problems: Sequence[Problem]) -> list[Judged]:
    """The mutants of these rows that are wrong, in their order, and the experts.

    Args:
        of: a result on emulated GPUs.
        problems: with an expert.

    Raises:
        SystemExit: experts have no such operation any more.
    """
    names = {problem.name for problem in problems}
    wrong = [operation_of(row) for row in of if row.is_wrong and row.problem in names]
    there = {
        operation_of(judged.row): judged
        for problem in problems
        for judged in mutants_of(problem, expert_source(problem, "cu") or "")
    }
    missing = [", ".join(key) for key in wrong if key not in there]
    if missing:
        raise SystemExit(f"no such mutants: {'; '.join(missing)}. Measure --of again: benchmarks.emulated_mutants")
    return [there[key] for key in wrong] + experts(problems)


def configs(world_size: int, ranks_per_gpu: int, calls: Sequence[int]) -> list[EvalConfig]:
    """Of one evaluation after the other, with a seed each.

    Args:
        world_size: ranks.
        ranks_per_gpu: that share a GPU, and with it caches: a store without system scope is seen there.
        calls: of each evaluation.
    """
    return [
        EvalConfig(
            device="cuda",
            world_size=world_size,
            ranks_per_gpu=ranks_per_gpu if ranks_per_gpu > 1 else None,
            size="tiny",
            until="check",
            trials=trials,
            seed=seed,
            timeout_s=TIMEOUT_S,
            compile_timeout_s=COMPILE_TIMEOUT_S,
        )
        for seed, trials in enumerate(calls)
    ]


def judge_on_gpus(
    mutants: Sequence[Judged],
    evaluations: Sequence[EvalConfig],
    *,
    gangs: int,
    compilers: int,
    compiled: Path | None,
    until_s: float,
) -> Iterator[Row]:
    """A row for each mutant, as soon as it is judged; none for those that the deadline leaves out.

    Args:
        mutants: in the order in which they are compiled.
        evaluations: of each.
        gangs: that judge side by side.
        compilers: that work side by side.
        compiled: folder of compiled files; None: the user's cache.
        until_s: deadline, by `time.monotonic`, for beginning something.
    """
    compiling, idle = BoundedSemaphore(compilers), SimpleQueue[LocalEvaluator]()
    with ExitStack() as stack:
        compiler = stack.enter_context(LocalEvaluator(cache_dir=compiled))
        for _ in range(gangs):
            idle.put(stack.enter_context(LocalEvaluator(cache_dir=compiled)))

        def work(judged: Judged) -> Row | None:
            with compiling:
                if time.monotonic() > until_s:
                    return None
                config = evaluations[0].model_copy(update={"until": "compile"})
                compiler.evaluate(find_problem(judged.row.problem), judged.source, config)
            evaluator = idle.get()
            try:
                return None if time.monotonic() > until_s else judge(evaluator, judged, evaluations)
            finally:
                idle.put(evaluator)

        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(mutants))))
        for future in as_completed([pool.submit(work, judged) for judged in mutants]):
            row = future.result()
            if row is not None:
                yield row


def earlier_rows(path: Path, mutants: Sequence[Judged]) -> list[Row]:
    """The rows of an earlier result that speak of the present sources.

    Args:
        path: of the result, if there is one.
        mutants: that are to be judged.
    """
    if not path.exists():
        return []
    of = json.loads(path.read_text(encoding="utf-8"))["commit"]
    present = {judged.row.key for judged in mutants}
    rows = [row for row in load(path) if not row.not_judged and row.key in present]
    return [replace(row, commit=row.commit or of) for row in rows]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("emulated_mutants_on_gpus", __doc__)
    of = RESULTS / "emulated_mutants.json"
    parser.add_argument("--of", type=Path, default=of, metavar="FILE", help="result on emulated GPUs")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all that have an expert.cu")
    parser.add_argument("--ranks-per-gpu", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--calls", type=int, nargs="+", default=CALLS, metavar="N", help="of each evaluation")
    parser.add_argument("--gangs", type=int, default=GANGS, metavar="N", help="side by side (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help="compilers (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="what has not begun by then is left out")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of compiled files (default: the user's cache)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Judges and saves."""
    args = _arguments(argv)
    until_s = time.monotonic() + args.budget_s
    world_size = int(json.loads(args.of.read_text(encoding="utf-8"))["world_size"])
    problems = [find_problem(name) for name in args.problems] if args.problems else catalogue()
    mutants = chosen(load(args.of), [problem for problem in problems if expert_source(problem, "cu")])
    path = args.out / f"emulated_mutants_{gpus_in_name(world_size, args.ranks_per_gpu)}.json"
    rows = {row.key: row for row in earlier_rows(path, mutants)}
    here = commit()
    about: dict[str, object] = {"gpus": list(gpus.names()), "world_size": world_size}
    about |= {"ranks_per_gpu": args.ranks_per_gpu, "gangs": args.gangs}
    about |= {"calls": sum(args.calls), "calls_of_evaluations": list(args.calls)}
    found = judge_on_gpus(
        [judged for judged in mutants if judged.row.key not in rows],
        configs(world_size, args.ranks_per_gpu, args.calls),
        gangs=args.gangs,
        compilers=args.jobs,
        compiled=args.compiled,
        until_s=until_s,
    )
    for row in found:
        rows[row.key] = replace(row, commit=here)
        save(path, row, header() | about, list(rows.values()))
    print(markdown(list(rows.values())))
    unexpected = [row for row in rows.values() if row.not_judged or (not row.mutant and row.seed is not None)]
    for row in unexpected:
        print(f"{row.problem}, {row.mutant or 'expert'}: {row.message}")
    left = [judged for judged in mutants if judged.row.key not in rows]
    print(f"{len(rows)} judged, {len(left)} left")
    return 1 if unexpected or left else 0


if __name__ == "__main__":
    sys.exit(main())
