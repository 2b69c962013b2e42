"""The study of mutants: the sources to be judged, the verdicts that they still lack, and the rows that count them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import chain, repeat
from types import MappingProxyType
from typing import Literal

from benchmarks.cpp_operations import Kind
from benchmarks.equivalent_mutants import reason_why
from benchmarks.mutant_rows import Row
from benchmarks.mutant_sizes import config_of, sizes_of
from benchmarks.sharded import sharded
from benchmarks.synchronisation import InlinedSource, Mutant, Operation, reached
from benchmarks.unreached_mutants import why_unreached
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import expert_source, find_problem

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
        sizes: an operation's mutant is judged at the first at which a rank comes to the operation; see `sizes_of`.
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

    def prepare(
        self,
        problem: Problem,
        mutants: int,
        experts: Sequence[int],
        fences: bool,
        left_out: Collection[tuple[str, str]] = (),
    ) -> list[Judged]:
        """The work on one problem: finds the sizes at which its operations are reached.

        Args:
            problem: one with an expert.
            mutants: evaluations of each mutant.
            experts: evaluations of the unchanged expert at each size; the last holds for all sizes that follow.
            fences: whether mutants without a fence are judged too.
            left_out: mutants by problem and name that are not judged.
        """
        text = expert_source(problem, self._suffix)
        assert text is not None, problem.name
        source = InlinedSource.of(text)
        stale = [row.key for row in self.rows if row.problem == problem.name and row.digest != source.digest]
        for key in stale:
            del self._rows[key]
            self._known.pop(key[:2], None)
        work = []
        every_size = sizes_of(problem.name, self._sizes)
        for size, wanted in zip(every_size, chain(experts, repeat(experts[-1])), strict=False):
            if wanted:
                row = Row(problem.name, "", "", size, self._world_size, source.digest)
                work.append(self._judged(text, row, wanted))
        if mutants:
            chosen = [mutant for mutant in source.mutants() if mutant.kind is not Kind.FENCE or fences]
            chosen = [mutant for mutant in chosen if (problem.name, mutant.name) not in left_out]
            sizes = self._sizes_of(problem, source, chosen)
            for mutant in chosen:
                row = self._row(problem, source, mutant, sizes[mutant.name])
                work.append(self._judged(mutant.source, row, mutants))
        return [judged for judged in work if judged.row.size is not None]

    def _judged(self, source: str, row: Row, wanted: int) -> Judged:
        known = self._rows.get(row.key)
        row = row if known is None else replace(known, equivalent=row.equivalent, unreached=row.unreached)
        self._rows[row.key] = row
        config = self._config if row.size is None else self._config.model_copy(update=config_of(row.size))
        if row.mutant:
            config = config.model_copy(update={"timeout_s": self._timeout_s})
        return Judged(source, config, wanted, row)

    def _row(self, problem: Problem, source: InlinedSource, mutant: Mutant, size: str | None) -> Row:
        place = place_of(source, mutant)
        reason = reason_why(problem.name, self._suffix, *place)
        unreached = self._why_unreached(problem, place)
        digest = source.digest
        return Row(problem.name, mutant.name, mutant.kind, size, self._world_size, digest, reason, unreached)

    def _why_unreached(self, problem: Problem, place: tuple[str, str, int]) -> str | None:
        return why_unreached(problem.name, *place, self._world_size) if self._suffix == "cu" else None

    def _sizes_of(self, problem: Problem, source: InlinedSource, chosen: Sequence[Mutant]) -> dict[str, str | None]:
        """For each mutant by name, the first size at which a rank reaches one of its operations; None if at none."""
        known = {mutant.name: (problem.name, mutant.name) for mutant in chosen}
        never = {mutant.name for mutant in chosen if self._why_unreached(problem, place_of(source, mutant))}
        if all(key in self._known for key in known.values()):
            return {name: None if name in never else self._known[key] for name, key in known.items()}
        if self._config.ranks_per_gpu:
            lacking = next(name for name, key in known.items() if key not in self._known)
            raise SystemExit(f"{problem.name}: no size of {lacking!r} is known; look for it on a GPU for each rank")
        # Fences are not among the operations that are looked for.
        sizes = sizes_of(problem.name, self._sizes)
        first = next(iter(sizes), None)
        found = {mutant.name: first if mutant.kind is Kind.FENCE else None for mutant in chosen}
        for size in sizes:
            left = [mutant for mutant in chosen if found[mutant.name] is None and mutant.name not in never]
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
        config = self._config.model_copy(update=config_of(size) | {"until": "time", "timing_budget_s": 0.1})
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


def known_sizes(rows: Iterable[Row]) -> dict[tuple[str, str], str | None]:
    """The size of each mutant in rows, by problem and name."""
    return {(row.problem, row.mutant): row.size for row in rows if row.mutant}


def evaluated(rows: Iterable[Row]) -> set[tuple[str, str]]:
    """The mutants that rows have an evaluation of, by problem and name."""
    return {(row.problem, row.mutant) for row in rows if row.mutant and row.evaluations}


def in_order(work: Sequence[Judged], sizes: Sequence[str]) -> list[list[Judged]]:
    """What is judged first and after it: the mutants, then the experts at each size of `--sizes`."""
    experts = [judged for judged in work if not judged.row.mutant]
    at_each = [[one for one in experts if one.row.size in sizes_of(one.row.problem, [size])] for size in sizes]
    return [[judged for judged in work if judged.row.mutant], *at_each]


def place_of(source: InlinedSource, mutant: Mutant) -> tuple[str, str, int]:
    """File and code of the operation that a mutant lacks, and the number of operations of both that come before."""
    first = mutant.operations[0]
    alike = [
        operation
        for operation in source.operations()
        if (operation.file, operation.code) == (first.file, first.code) and operation.start < first.start
    ]
    file, code = ("expert", mutant.name) if len(mutant.operations) > 1 else (first.file, first.code)
    return file, code, len(alike)


def assumed_sizes(problems: Sequence[Problem], suffix: str, sizes: Sequence[str]) -> dict[tuple[str, str], str | None]:
    """The first size for each mutant, by problem and name, as if all operations were come to there; None without one.

    A mutant passes if that is wrong, so that it shows.
    """
    mutants = {problem.name: InlinedSource.of(expert_source(problem, suffix) or "").mutants() for problem in problems}
    first = {name: next(iter(sizes_of(name, sizes)), None) for name in mutants}
    return {(name, mutant.name): first[name] for name, of in mutants.items() for mutant in of}
