"""Every expert without one of its synchronisations, and the unchanged experts, each judged many times.

A mutant counts as refused if it does not pass the evaluation that a training run would give it. Where an operation is
not come to at any of the sizes, its mutant is not judged. Rows are added to those of an earlier run, as far as the
kernels and the headers that they synchronise by are the same; so a run can be cut off and done in parts.

python -m benchmarks.mutants [--device cpu|cuda] [--world-size N] [--sizes tiny ...] [--problems NAME ...]
                             [--mutants N] [--experts N] [--fences] [--budget-s S] [--out FOLDER]
python -m benchmarks.mutants --merge FILE ... [--out FOLDER]    puts the results of several runs of one commit together

Exit status: 0 if every wrong mutant was refused and no expert was, else 1; 3 without the GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from benchmarks.common import RESULTS, header
from benchmarks.cpp_operations import Kind
from benchmarks.equivalent_mutants import reason_why
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

MUTANT_TIMEOUT_S = {"cpu": 2.0, "cuda": 0.5}
"""Deadline of a mutant's calls, which take milliseconds with their delays: many wait for a word that never comes."""

NO_VERDICT = frozenset({Failure.INFRASTRUCTURE, Failure.COMPILE_ERROR, Failure.LOAD_ERROR, Failure.REJECTED})

MOST_NOT_JUDGED = 3
"""A kernel that has had so many evaluations without a verdict is given up."""


@dataclass(frozen=True)
class Row:
    """The verdicts on one kernel, or on one of its mutants.

    Attributes:
        problem: its name.
        mutant: the operations that are missing; "" for the unchanged expert.
        kind: of these operations; "" for the expert.
        size: that it is judged at; None where the mutated operation is not come to at any.
        world_size: ranks.
        digest: of the expert with its headers.
        equivalent: why the mutant is right all the same, or None.
        evaluations: how often it was judged.
        refused: how often it did not pass.
        failures: evaluations by failure or finding.
        not_judged: evaluations that say nothing of it: it did not compile, or this machine failed; not counted above.
        message: of the first evaluation that it did not pass; "" if none.
    """

    problem: str
    mutant: str
    kind: str
    size: str | None
    world_size: int
    digest: str
    equivalent: str | None = None
    evaluations: int = 0
    refused: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    not_judged: int = 0
    message: str = ""

    @property
    def key(self) -> tuple[str, str, str | None, int, str]:
        """The key of a row."""
        return self.problem, self.mutant, self.size, self.world_size, self.digest

    @property
    def is_wrong(self) -> bool:
        """Whether it breaks the call contract, in a way that a run shows."""
        return bool(self.mutant) and self.equivalent is None and self.kind != Kind.FENCE

    @property
    def is_as_expected(self) -> bool:
        """Wrong mutants are always refused, experts and equivalent mutants never, and all have been judged.

        Only a mutant whose operation no size comes to needs no evaluation.
        """
        if not self.evaluations:
            return self.size is None and not self.not_judged
        return self.kind == Kind.FENCE or self.refused == (self.evaluations if self.is_wrong else 0)

    def with_verdict(self, feedback: Feedback) -> Row:
        """One evaluation more."""
        if feedback.failure in NO_VERDICT:
            return replace(self, not_judged=self.not_judged + 1, message=self.message or feedback.message[:400])
        if feedback.passed:
            return replace(self, evaluations=self.evaluations + 1)
        reason = str(feedback.failure or ", ".join(sorted({finding.code for finding in feedback.integrity})))
        return replace(
            self,
            evaluations=self.evaluations + 1,
            refused=self.refused + 1,
            failures=dict(Counter(self.failures) + Counter([reason])),
            message=self.message or feedback.message[:400],
        )


@dataclass(frozen=True)
class Judged:
    """A source to be judged up to so many times, and its row."""

    problem: Problem
    source: str
    config: EvalConfig
    wanted: int
    row: Row


class Study:
    """The rows, and the evaluations that they still lack.

    Args:
        evaluator: that judges.
        device: of the kernels.
        world_size: ranks.
        sizes: an operation's mutant is judged at the first at which a rank comes to the operation.
        until: last stage of an evaluation.
        earlier: rows of an earlier run.
        same_sizes: whether that run had these sizes, so that where operations are come to needs no second look.
    """

    def __init__(
        self,
        evaluator: LocalEvaluator,
        device: Literal["cpu", "cuda"],
        world_size: int,
        sizes: Sequence[str],
        until: Literal["check", "time"],
        earlier: Iterable[Row] = (),
        same_sizes: bool = False,
    ) -> None:
        self._evaluator = evaluator
        self._sizes = sizes
        self._timeout_s = MUTANT_TIMEOUT_S[device]
        self._suffix = {"cpu": "cpp", "cuda": "cu"}[device]
        self._config = EvalConfig(device=device, world_size=world_size, until=until, compile_timeout_s=600)
        self._world_size = world_size
        self._rows = {row.key: row for row in earlier}
        self._known = {row.key[:2]: row.size for row in self._rows.values() if row.mutant and same_sizes}

    @property
    def rows(self) -> list[Row]:
        """All rows, by problem and mutant; the expert's first."""
        return sorted(self._rows.values(), key=lambda row: (row.problem, row.mutant, row.size or ""))

    def prepare(self, problem: Problem, mutants: int, experts: int, fences: bool) -> list[Judged]:
        """The work on one problem: finds the sizes at which its operations are reached.

        Args:
            problem: one with an expert.
            mutants: evaluations of each mutant.
            experts: evaluations of the unchanged expert at each size.
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
        if experts:
            for size in self._sizes:
                row = Row(problem.name, "", "", size, self._world_size, source.digest)
                work.append(self._judged(problem, text, row, experts))
        if mutants:
            chosen = [mutant for mutant in source.mutants() if mutant.kind is not Kind.FENCE or fences]
            sizes = self._sizes_of(problem, source, chosen)
            for mutant in chosen:
                row = self._row(problem, source, mutant, sizes[mutant.name])
                work.append(self._judged(problem, mutant.source, row, mutants))
        return [judged for judged in work if judged.row.size is not None]

    def _judged(self, problem: Problem, source: str, row: Row, wanted: int) -> Judged:
        known = self._rows.get(row.key)
        row = row if known is None else replace(known, equivalent=row.equivalent)
        self._rows[row.key] = row
        config = self._config.model_copy(update={"size": row.size or self._sizes[0]})
        if row.mutant:
            config = config.model_copy(update={"timeout_s": self._timeout_s})
        return Judged(problem, source, config, wanted, row)

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
        places = {size: self._places(problem, source, size) for size in self._sizes}

        def first_size(mutant: Mutant) -> str | None:
            if mutant.kind is Kind.FENCE:  # not among those that are looked for
                return self._sizes[0]
            at = {(operation.start, operation.end) for operation in mutant.operations}
            sizes = [size for size, found in places.items() if any((op.start, op.end) in at for op in found)]
            return next(iter(sizes), None)

        return {mutant.name: first_size(mutant) for mutant in chosen}

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

    def compile(self, work: Sequence[Judged], threads: int) -> None:
        """Fills the compile cache, several at a time."""

        def compile_one(judged: Judged) -> None:
            config = judged.config.model_copy(update={"until": "compile"})
            feedback = self._evaluator.evaluate(judged.problem, judged.source, config)
            if feedback.failure is not None:
                name = judged.row.mutant or "expert"
                print(f"{judged.problem.name}, {name}: {feedback.failure} {feedback.message[:500]}", file=sys.stderr)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compile_one, [judged for judged in work if self._lacks(judged)]))

    def _lacks(self, judged: Judged) -> bool:
        row = self._rows[judged.row.key]
        return row.evaluations < judged.wanted and row.not_judged < MOST_NOT_JUDGED

    def judge(self, work: Sequence[Judged], until_s: float, save: Callable[[], None]) -> None:
        """Round after round, each source once a round, until all have been judged as often as wanted.

        Args:
            work: what is judged.
            until_s: no evaluation begins after this, by `time.monotonic`.
            save: is called now and then, and at the end.
        """
        saved_s = time.monotonic()
        while True:
            lacking = [judged for judged in work if self._lacks(judged)]
            if not lacking or time.monotonic() > until_s:
                break
            for judged in lacking:
                if time.monotonic() > until_s:
                    break
                row = self._rows[judged.row.key]
                config = judged.config.model_copy(update={"seed": row.evaluations + row.not_judged})
                row = row.with_verdict(self._evaluator.evaluate(judged.problem, judged.source, config))
                self._rows[row.key] = row
                if not row.is_as_expected:
                    print(f"{row.problem}, {row.mutant or 'expert'}: {row.message or 'passed'}", file=sys.stderr)
                if time.monotonic() - saved_s > EVERY_S:
                    save()
                    saved_s = time.monotonic()
        save()


def main(argv: Sequence[str] | None = None) -> int:
    """Judges what is lacking and saves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=main.__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, help="ranks (default: 4, or every GPU)")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "published"])
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all that have an expert")
    parser.add_argument("--mutants", type=int, default=20, metavar="N", help="of each (default: %(default)s)")
    parser.add_argument("--experts", type=int, default=200, metavar="N", help="of each size (default: %(default)s)")
    parser.add_argument("--experts-only", action="store_const", const=0, dest="mutants", help="as --mutants 0")
    parser.add_argument("--fences", action="store_true", help="judge mutants without fences too")
    parser.add_argument("--until", choices=("check", "time"), default="time", help="last stage (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="no evaluation begins after this")
    parser.add_argument("--threads", type=int, default=processors(), help="compilers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args(argv)
    if args.merge:
        merge(args.merge, args.out)
        return 0
    until_s = time.monotonic() + args.budget_s
    world_size = args.world_size or (len(gpus.names()) if args.device == "cuda" else 4)
    if args.device == "cuda" and not 0 < world_size <= len(gpus.names()):
        print(f"{world_size} GPUs wanted, {len(gpus.names())} on this machine", file=sys.stderr)
        return 3
    suffix = {"cpu": "cpp", "cuda": "cu"}[args.device]
    problems = [find_problem(name) for name in args.problems] if args.problems else catalogue()
    problems = [problem for problem in problems if expert_source(problem, suffix)]
    path = args.out / ("mutants.json" if args.device == "cpu" else f"mutants_{world_size}_gpus.json")
    about = {"device": args.device, "world_size": world_size, "sizes": args.sizes, "until": args.until}
    if args.device == "cuda":
        about["gpus"] = list(gpus.names())
    with LocalEvaluator() as evaluator:
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": (), "sizes": ()}
        rows = [Row(**row) for row in earlier["rows"]]
        same_sizes = list(earlier["sizes"]) == list(args.sizes)
        study = Study(evaluator, args.device, world_size, args.sizes, args.until, rows, same_sizes)

        def save() -> None:
            rows = [asdict(row) for row in study.rows]
            write_atomically(path, json.dumps(header() | about | {"rows": rows}, indent=1) + "\n")

        compile_reports(evaluator, problems, suffix, args.threads)
        work = [judged for p in problems for judged in study.prepare(p, args.mutants, args.experts, args.fences)]
        print(f"{len(work)} sources", file=sys.stderr)
        study.compile(work, args.threads)
        judged_first = [judged for judged in work if judged.row.mutant]
        study.judge(judged_first, until_s, save)
        study.judge([judged for judged in work if not judged.row.mutant], until_s, save)
    unexpected = [row for row in study.rows if not row.is_as_expected]
    for row in unexpected:
        print(f"{row.problem}, {row.mutant or 'expert'}, {row.size}: {row.refused} of {row.evaluations} refused")
    print(f"{sum(row.is_wrong and row.size is not None for row in study.rows)} wrong mutants; saved to {path}")
    return 1 if unexpected else 0


def merge(paths: Sequence[Path], folder: Path) -> None:
    """Writes the rows of several results as one, under the head and the name of the first and the commands of all.

    Raises:
        SystemExit: they are not of one commit and one sort, or two speak of the same kernel.
    """
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for name in ("commit", "device", "world_size", "until"):
        if len({result[name] for result in results}) > 1:
            raise SystemExit(f"{name} differs: {', '.join(str(result[name]) for result in results)}")
    rows = [row for path in paths for row in load(path)]
    if len({row.key for row in rows}) < len(rows):
        raise SystemExit("results speak of the same kernels twice: give the runs other --problems")
    rows.sort(key=lambda row: (row.problem, row.mutant, row.size or ""))
    commands = " & ".join(result["command"] for result in results)
    merged = results[0] | {"command": commands, "rows": [asdict(row) for row in rows]}
    write_atomically(folder / paths[0].name, json.dumps(merged, indent=1) + "\n")


def compile_reports(evaluator: LocalEvaluator, problems: Sequence[Problem], suffix: str, threads: int) -> None:
    """Fills the compile cache with the kernels that report the operations that they reach."""

    def compile_one(problem: Problem) -> None:
        source = InlinedSource.of(expert_source(problem, suffix) or "")
        config = EvalConfig(device={"cpp": "cpu", "cu": "cuda"}[suffix], until="compile", compile_timeout_s=600)
        if source.operations():
            evaluator.evaluate(problem, source.reporting(), config)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compile_one, problems))


def load(path: Path) -> list[Row]:
    """The rows of a result."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


if __name__ == "__main__":
    sys.exit(main())
