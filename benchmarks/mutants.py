"""Every expert without one of its synchronisations, and the unchanged experts, each judged many times.

A mutant counts as refused if it does not pass the evaluation that a training run would give it. Where an operation is
not come to at any of the sizes, its mutant is not judged. Evaluations are added to those of an earlier run of the same
commit; so a run can be cut off and done in parts. Several evaluators can work side by side: until `check` they wait
most of the time, for deadlines and for ranks that are late on purpose. Those on GPUs share all of them.

python -m benchmarks.mutants [--device cpu|cuda] [--world-size N] [--sizes tiny ...] [--problems NAME ...]
                             [--mutants N] [--experts N ...] [--fences] [--jobs N] [--budget-s S] [--out FOLDER]
python -m benchmarks.mutants --device cuda --ranks-per-gpu N --sizes-of FILE ...     ranks share GPUs, until `check`
python -m benchmarks.mutants --merge FILE ... [--out FOLDER]   puts results together; adds up those of the same kernel

Exit status: 0 if every wrong mutant was refused and no expert was, else 1; 3 without the GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from benchmarks.common import RESULTS, gpus_in_name, header, unfinished
from benchmarks.cpp_operations import Kind
from benchmarks.equivalent_mutants import reason_why
from benchmarks.mutant_rows import Row, load, merge
from benchmarks.renamed import with_present_names
from benchmarks.sharded import sharded
from benchmarks.synchronisation import InlinedSource, Mutant, Operation, reached
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

EVERY_S = 20.0
"""Results are written at least so often."""

MUTANT_TIMEOUT_S = {"cpu": 2.0, "cuda": 0.25}
"""Deadline of a mutant's calls, which take milliseconds with their delays: many wait for a word that never comes.
Longer by the number of ranks that share a GPU, those of all evaluators, which takes them in turns."""

MOST_NOT_JUDGED = 3
"""A kernel that has had so many evaluations without a verdict is given up."""


@dataclass(frozen=True)
class Judged:
    """A source to be judged up to so many times, and its row."""

    source: str
    config: EvalConfig
    wanted: int
    row: Row

    @property
    def problem(self) -> Problem:
        """The problem that it is to solve; found by name, since it does not cross to another process."""
        return find_problem(self.row.problem)


@dataclass(frozen=True)
class Order:
    """One evaluation.

    Attributes:
        judged: that is evaluated.
        seed: of its inputs.
    """

    judged: Judged
    seed: int


Verdicts = Callable[[Iterable[Order], float], Iterator[tuple[Order, Feedback]]]
"""The verdict on each order, until a deadline by `time.monotonic`; an order is drawn when it can begin."""


def evaluate(evaluator: LocalEvaluator, order: Order) -> Feedback:
    """The verdict on one order."""
    config = order.judged.config.model_copy(update={"seed": order.seed})
    return evaluator.evaluate(order.judged.problem, order.judged.source, config)


def in_turn(evaluator: LocalEvaluator, orders: Iterable[Order], until_s: float) -> Iterator[tuple[Order, Feedback]]:
    """One after the other."""
    for order in orders:
        if time.monotonic() > until_s:
            return
        yield order, evaluate(evaluator, order)


def side_by_side(jobs: int, orders: Iterable[Order], until_s: float) -> Iterator[tuple[Order, Feedback]]:
    """By so many processes at a time."""
    return sharded(evaluate, orders, jobs=jobs, until_s=until_s, compiled=None, key=b"mutants")


class Study:
    """The rows, and the evaluations that they still lack.

    Args:
        evaluator: that judges.
        device: of the kernels.
        world_size: ranks.
        sizes: an operation's mutant is judged at the first at which a rank comes to the operation.
        until: last stage of an evaluation.
        earlier: rows of an earlier run.
        known_sizes: of mutants by problem and name, as `_sizes_of` finds them, which then need no second look.
        ranks_per_gpu: ranks that share one GPU.
        evaluators: that work side by side.
    """

    def __init__(
        self,
        evaluator: LocalEvaluator,
        device: Literal["cpu", "cuda"],
        world_size: int,
        sizes: Sequence[str],
        until: Literal["check", "time"],
        earlier: Iterable[Row] = (),
        known_sizes: Mapping[tuple[str, str], str | None] = MappingProxyType({}),
        ranks_per_gpu: int = 1,
        evaluators: int = 1,
    ) -> None:
        self._evaluator = evaluator
        self._sizes = sizes
        self._timeout_s = MUTANT_TIMEOUT_S[device] * ranks_per_gpu * (evaluators if device == "cuda" else 1)
        self._suffix = {"cpu": "cpp", "cuda": "cu"}[device]
        self._config = EvalConfig(
            device=device,
            world_size=world_size,
            ranks_per_gpu=ranks_per_gpu if ranks_per_gpu > 1 else None,
            until=until,
            compile_timeout_s=600,
        )
        self._world_size = world_size
        self._rows = {row.key: row for row in earlier}
        self._known = dict(known_sizes)

    @property
    def rows(self) -> list[Row]:
        """All rows, by problem and mutant; the expert's first."""
        return sorted(self._rows.values(), key=lambda row: (row.problem, row.mutant, row.size or ""))

    def prepare(self, problem: Problem, mutants: int, experts: Sequence[int], fences: bool) -> list[Judged]:
        """The work on one problem: finds the sizes at which its operations are reached.

        Args:
            problem: one with an expert.
            mutants: evaluations of each mutant.
            experts: evaluations of the unchanged expert at each size; the last holds for all sizes that follow.
            fences: whether mutants without a fence are judged too.
        """
        text = expert_source(problem, self._suffix)
        assert text is not None, problem.name
        source = InlinedSource.of(text)
        stale = [row.key for row in self.rows if row.problem == problem.name and row.digest != source.digest]
        for key in stale:
            del self._rows[key]
            self._known.pop(key[:2], None)
        work = []
        for size, wanted in zip(self._sizes, chain(experts, repeat(experts[-1])), strict=False):
            if wanted:
                row = Row(problem.name, "", "", size, self._world_size, source.digest)
                work.append(self._judged(text, row, wanted))
        if mutants:
            chosen = [mutant for mutant in source.mutants() if mutant.kind is not Kind.FENCE or fences]
            sizes = self._sizes_of(problem, source, chosen)
            for mutant in chosen:
                row = self._row(problem, source, mutant, sizes[mutant.name])
                work.append(self._judged(mutant.source, row, mutants))
        return [judged for judged in work if judged.row.size is not None]

    def _judged(self, source: str, row: Row, wanted: int) -> Judged:
        known = self._rows.get(row.key)
        row = row if known is None else replace(known, equivalent=row.equivalent)
        self._rows[row.key] = row
        config = self._config.model_copy(update={"size": row.size or self._sizes[0]})
        if row.mutant:
            config = config.model_copy(update={"timeout_s": self._timeout_s})
        return Judged(source, config, wanted, row)

    def _row(self, problem: Problem, source: InlinedSource, mutant: Mutant, size: str | None) -> Row:
        first = mutant.operations[0]
        alike = [
            operation
            for operation in source.operations()
            if (operation.file, operation.code) == (first.file, first.code) and operation.start < first.start
        ]
        file, code = ("expert", mutant.name) if len(mutant.operations) > 1 else (first.file, first.code)
        reason = reason_why(problem.name, self._suffix, file, code, len(alike))
        return Row(problem.name, mutant.name, mutant.kind, size, self._world_size, source.digest, reason)

    def _sizes_of(self, problem: Problem, source: InlinedSource, chosen: Sequence[Mutant]) -> dict[str, str | None]:
        """For each mutant by name, the first size at which a rank reaches one of its operations; None if at none."""
        known = {mutant.name: (problem.name, mutant.name) for mutant in chosen}
        if all(key in self._known for key in known.values()):
            return {name: self._known[key] for name, key in known.items()}
        if self._config.ranks_per_gpu:
            lacking = next(name for name, key in known.items() if key not in self._known)
            raise SystemExit(f"{problem.name}: no size of {lacking!r} is known; look for it on a GPU for each rank")
        # Fences are not among the operations that are looked for.
        found = {mutant.name: self._sizes[0] if mutant.kind is Kind.FENCE else None for mutant in chosen}
        for size in self._sizes:
            left = [mutant for mutant in chosen if found[mutant.name] is None]
            places = {(op.start, op.end) for op in self._places(problem, source, size)} if left else set()
            reached_here = [mutant for mutant in left if any((op.start, op.end) in places for op in mutant.operations)]
            found |= {mutant.name: size for mutant in reached_here}
        return found

    def _places(self, problem: Problem, source: InlinedSource, size: str) -> set[Operation]:
        """Operations that a rank reaches at one size; all of them where that is unknown."""
        operations = source.operations()
        if not operations:
            return set()
        # A call reports the operations of earlier calls; on GPUs a block is enqueued before its first call runs.
        config = self._config.model_copy(update={"size": size, "until": "time", "timing_budget_s": 0.1})
        feedback = self._evaluator.evaluate(problem, source.reporting(), config)
        found = reached(operations, feedback.output)
        other_work = feedback.failure is Failure.INTEGRITY  # of a GPU that somebody else uses too
        if not (feedback.passed or other_work) or not found:
            print(f"{problem.name}, {size}: {feedback.failure} {feedback.message[:300]}", file=sys.stderr)
            return set(operations)
        return found

    def compile(self, work: Sequence[Judged], compilers: Executor) -> list[Future[None]]:
        """Begins to fill the compile cache, in the order of the work; an evaluation waits for its own source alone."""

        def compile_one(judged: Judged) -> None:
            config = judged.config.model_copy(update={"until": "compile"})
            feedback = self._evaluator.evaluate(judged.problem, judged.source, config)
            if feedback.failure is not None:
                name = judged.row.mutant or "expert"
                print(f"{judged.problem.name}, {name}: {feedback.failure} {feedback.message[:500]}", file=sys.stderr)

        return [compilers.submit(compile_one, judged) for judged in work if self._lacks(judged)]

    def _lacks(self, judged: Judged) -> bool:
        row = self._rows[judged.row.key]
        return row.evaluations < judged.wanted and row.not_judged < MOST_NOT_JUDGED

    def judge(self, work: Sequence[Judged], verdicts: Verdicts, until_s: float, save: Callable[[], None]) -> None:
        """Round after round, each source once a round, until all have been judged as often as wanted.

        Args:
            work: what is judged.
            verdicts: evaluates.
            until_s: no evaluation begins after this, by `time.monotonic`.
            save: is called now and then, and at the end.
        """
        saved_s = time.monotonic()
        while any(self._lacks(judged) for judged in work) and time.monotonic() < until_s:
            for order, feedback in verdicts(self._lacking(work), until_s):
                row = self._rows[order.judged.row.key].with_verdict(feedback)
                self._rows[row.key] = row
                if not row.is_as_expected:
                    print(f"{row.problem}, {row.mutant or 'expert'}: {row.message or 'passed'}", file=sys.stderr)
                if time.monotonic() - saved_s > EVERY_S:
                    save()
                    saved_s = time.monotonic()
        save()

    def _lacking(self, work: Sequence[Judged]) -> Iterator[Order]:
        """The evaluations that are lacking, in rounds; each that gives no verdict leaves another one lacking."""
        begun = {judged.row.key: self._rows[judged.row.key].evaluations for judged in work}
        seeds = {key: evaluations + self._rows[key].not_judged for key, evaluations in begun.items()}
        while left := [judged for judged in work if self._lacks(judged) and begun[judged.row.key] < judged.wanted]:
            for judged in left:
                key = judged.row.key
                if self._lacks(judged):
                    yield Order(judged, seeds[key])
                    begun[key] += 1
                    seeds[key] += 1


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
    parser.add_argument("--ranks-per-gpu", type=int, default=1, metavar="N", help="needs --sizes-of (default: 1)")
    parser.add_argument("--sizes-of", type=Path, metavar="FILE", help="sizes of mutants as in this result")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="no evaluation begins after this")
    parser.add_argument("--threads", type=int, default=processors(), help="compilers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args(argv)
    if args.merge:
        merge(args.merge, args.out)
        return 0
    shared = args.ranks_per_gpu > 1
    if shared and args.sizes_of is None:
        parser.error(f"--ranks-per-gpu {args.ranks_per_gpu}: the look for sizes is timed; give --sizes-of too")
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
        known = known_sizes(looked_at)
        sharing = args.ranks_per_gpu, args.jobs
        study = Study(evaluator, args.device, world_size, args.sizes, args.until, rows, known, *sharing)

        def save() -> None:
            rows = [asdict(row) for row in study.rows]
            write_atomically(path, json.dumps(header() | about | {"rows": rows}, indent=1) + "\n")

        if not args.sizes_of:
            compile_reports(evaluator, problems, suffix, args.threads)
        work = [judged for p in problems for judged in study.prepare(p, args.mutants, args.experts, args.fences)]
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


def known_sizes(rows: Iterable[Row]) -> dict[tuple[str, str], str | None]:
    """The size of each mutant in rows, by problem and by its name with today's identifiers."""
    return {(row.problem, with_present_names(row.mutant)): row.size for row in rows if row.mutant}


def in_order(work: Sequence[Judged], sizes: Sequence[str]) -> list[list[Judged]]:
    """What is judged first and after it: the mutants, then the experts at each size."""
    experts = [[judged for judged in work if not judged.row.mutant and judged.row.size == size] for size in sizes]
    return [[judged for judged in work if judged.row.mutant], *experts]


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
