"""Experts without one of their synchronisations, or with a weak one, on emulated GPUs with the race detector.

A mutant is found if one of its evaluations, with the seeds 0, 1, 2 ... in turn, does not pass. The first such seed, the
failure, and whether a finding names the line of the mutated operation are recorded. The unchanged experts are judged
with every seed.

python -m benchmarks.emulated_mutants [--sample N] [--draw SEED] [--world-size N] [--problems NAME ...]
                                      [--kinds KIND ...] [--seeds N] [--experts] [--jobs N] [--budget-s S]
                                      [--out FOLDER]
python -m benchmarks.emulated_mutants --render FILE                             counts of a result, by kind

`benchmarks.emulated_mutants_on_gpus` judges the same mutants on GPUs.

A run goes on where an earlier one of the same sources ended: each mutant with its first seed before more seeds of any,
and of one that passes it is looked first whether the kernel comes to the operation at all. Exit status: 0 if every
mutant that is not equivalent was found and no expert was refused, else 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from random import Random

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.equivalent_mutants import AT_TINY, reason_why
from benchmarks.mutant_rows import NO_VERDICT
from benchmarks.sharded import sharded
from benchmarks.synchronisation import InlinedSource
from benchmarks.trapping import with_trap
from benchmarks.weakened_operations import inline_headers, weakened
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator, compile_emulated
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

MOST_MESSAGE = 1200
MUTANT_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 600.0

PAIR = 2
WITHOUT = "no "
"""Begin of the kinds of mutants that lack an operation."""
_PLACE = re.compile(r"\b[\w/]+\.(?:cuh?|h):\d+|(?<=by `)(?:arrival|departure)(?=`)")


def _places(message: str) -> tuple[str, ...]:
    """The places of the first finding; where a line was inlined, the line itself alone."""
    first = message.split("\n", 1)[0]
    return tuple(_PLACE.findall(re.sub(r"\(from [^)]*\)", "", first)))


@dataclass(frozen=True)
class Row:
    """The verdicts on one mutant, or on an unchanged expert.

    Attributes:
        problem: its name.
        kind: of the operation; "" for the expert.
        mutant: what is changed where; "" for the expert.
        line: of the mutated operation in the mutant's source; None for the expert.
        equivalent: why the mutant is right all the same, or None.
        reached: whether the kernel comes to the operation; None where the mutant was found, and so was not looked at.
        evaluations: how many gave a verdict.
        not_judged: how many gave none.
        seed: the first with which it was refused; None if it passed with all of them.
        failure: of that evaluation; "" if none.
        names_line: whether its message names the line of the operation.
        places: files and lines that the first finding names, such as those of two accesses; or a call's end.
        message: of that evaluation; "" if none.
        seconds: that all evaluations took.
        digest: of the source.
        commit: that it was judged with; "" for that of the result.
    """

    problem: str
    kind: str
    mutant: str
    line: int | None
    equivalent: str | None = None
    reached: bool | None = None
    evaluations: int = 0
    not_judged: int = 0
    seed: int | None = None
    failure: str = ""
    names_line: bool = False
    places: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0
    digest: str = ""
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of its row."""
        return self.problem, self.mutant, self.digest

    def is_settled(self, seeds: int) -> bool:
        """Whether no further seed, up to so many, can change the verdict."""
        found = self.seed is not None and bool(self.mutant)
        return (
            found
            or self.equivalent is not None
            or self.not_judged > 0
            or self.reached is False
            or self.evaluations >= seeds
        )

    @property
    def is_as_expected(self) -> bool:
        """A wrong mutant is found; an expert or a mutant that is right is not."""
        return self.evaluations > 0 and (self.seed is not None) == self.is_wrong

    @property
    def is_without(self) -> bool:
        """Whether it is a mutant that lacks an operation, instead of one with a weak one."""
        return self.kind.startswith(WITHOUT)

    @property
    def is_wrong(self) -> bool:
        """Whether it is a mutant of an operation that the kernel comes to and needs."""
        return bool(self.mutant) and self.equivalent is None and self.reached is not False


@dataclass(frozen=True)
class Judged:
    """A source, what is known of it, and the kernel that ends with an error where it comes to the mutated operation."""

    source: str
    row: Row
    trapping: str = ""

    def with_digest(self) -> Judged:
        """The same, its row bound to the source."""
        return replace(self, row=replace(self.row, digest=source_sha256(self.source)[:16]))


@dataclass(frozen=True)
class Order:
    """The part of one process: see `judge`."""

    judged: Judged
    config: EvalConfig
    seeds: int


def judge_order(evaluator: LocalEvaluator, order: Order) -> Row:
    """`judge`, and of a mutant that was not found whether the kernel comes to its operation."""
    configs = [order.config.model_copy(update={"seed": seed}) for seed in range(order.seeds)]
    row = judge(evaluator, order.judged, configs)
    if row.seed is not None or not row.evaluations or not order.judged.trapping or row.reached is not None:
        return row
    config = order.config.model_copy(update={"detect_races": False})
    feedback = evaluator.evaluate(find_problem(row.problem), order.judged.trapping, config)
    return row if feedback.failure in NO_VERDICT else replace(row, reached=not feedback.passed)


LINES_OF_STATEMENT = 4
"""An operation stands at most so many lines behind the first one of its statement."""


def lines_in_code(source: str, cache: CompileCache) -> frozenset[int]:
    """Lines that some instruction of the compiled source comes from."""
    binary = compile_emulated(source, cache, COMPILE_TIMEOUT_S).binary or b""
    return frozenset(int(line) for line in re.findall(rb"\.loc\s+1\s+(\d+)", binary))


def mutants_of(problem: Problem, text: str) -> Iterator[Judged]:
    """The mutants without an operation, and those with one that is too weak.

    Args:
        problem: with the expert.
        text: the expert.
    """
    source = InlinedSource.of(text)
    operations = source.operations()
    for mutant in source.mutants():
        first = mutant.operations[0]
        alike = [op for op in operations if (op.file, op.code) == (first.file, first.code)]
        before = sum(op.start < first.start for op in alike)
        whole = len(mutant.operations) > 1
        reason = reason_why(
            problem.name, "cu", "expert" if whole else first.file, mutant.name if whole else first.code, before
        )
        line = mutant.source.count("\n", 0, min(first.start, len(mutant.source))) + 1
        row = Row(problem.name, f"{WITHOUT}{mutant.kind}", mutant.name, line, reason)
        yield Judged(mutant.source, row, with_trap(source.text, first.start, first.end)).with_digest()
    for weak in weakened(text):
        row = Row(problem.name, weak.kind, weak.name, weak.line)
        yield Judged(weak.source, row, weak.trapping).with_digest()


def compiled_mutants_of(problem: Problem, text: str, cache: CompileCache) -> Iterator[Judged]:
    """Those of `mutants_of` that lack an operation, or whose weak one is in code that is compiled.

    Args:
        problem: with the expert.
        text: the expert.
        cache: of compiled sources.
    """
    compiled = lines_in_code(inline_headers(text)[0], cache)
    for judged in mutants_of(problem, text):
        line = judged.row.line or 0
        if judged.row.is_without or not compiled.isdisjoint(range(line - LINES_OF_STATEMENT, line + 1)):
            yield judged


def judge(evaluator: LocalEvaluator, judged: Judged, configs: Sequence[EvalConfig]) -> Row:
    """One evaluation after the other, with a seed each; the first refusal of a mutant ends it.

    Args:
        evaluator: that judges.
        judged: the source, and the row of the evaluations that there were before.
        configs: of all evaluations, from the first.
    """
    row, begin = judged.row, time.monotonic()
    for config in configs[row.evaluations :]:
        feedback = evaluator.evaluate(find_problem(row.problem), judged.source, config)
        if feedback.failure in NO_VERDICT:
            row = replace(row, not_judged=row.not_judged + 1, message=row.message or feedback.message[:MOST_MESSAGE])
            break  # no other seed makes it compile
        row = replace(row, evaluations=row.evaluations + 1)
        if feedback.passed or row.seed is not None:
            continue
        names_line = row.line is not None and re.search(rf":{row.line}\b", feedback.message) is not None
        row = replace(
            row,
            seed=config.seed,
            failure=str(feedback.failure),
            names_line=names_line,
            places=_places(feedback.message),
            message=feedback.message[:MOST_MESSAGE],
        )
        if row.mutant:
            break
    return replace(row, seconds=round(row.seconds + time.monotonic() - begin, 2))


def sampled(args: argparse.Namespace, problems: Sequence[Problem]) -> list[Judged]:
    """Mutants that are not equivalent, drawn at random; of each kind as many as of another, as far as there are.

    Args:
        args: kinds, number and seed of the choice; a larger number adds to a smaller one.
        problems: with an expert.
    """
    cache = CompileCache.in_folder(args.compiled)

    def of_problem(problem: Problem) -> list[Judged]:
        text = expert_source(problem, "cu")
        assert text is not None, problem.name
        return list(compiled_mutants_of(problem, text, cache))

    of_kind: dict[str, list[Judged]] = {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for judged in (each for found in pool.map(of_problem, problems) for each in found):
            if judged.row.equivalent is None and (not args.kinds or judged.row.kind in args.kinds):
                of_kind.setdefault(judged.row.kind, []).append(judged)
    for kind, found in of_kind.items():
        Random(f"mutants {args.draw} {kind}").shuffle(found)
    rounds = zip_longest(*(of_kind[kind] for kind in sorted(of_kind)))
    return [judged for each in rounds for judged in each if judged is not None][: args.sample]


SEEDS_OF_ROUNDS = (1, 4)
"""Seeds that every mutant is evaluated with before any is with more, and then with all."""


def judge_emulated(
    args: argparse.Namespace, mutants: Sequence[Judged], rows: Mapping[tuple[str, str, str], Row], until_s: float
) -> Iterator[Row]:
    """Each source on emulated GPUs, in rounds of ever more seeds; a row after each round.

    Args:
        args: of the command line.
        mutants: and experts.
        rows: of earlier rounds; the caller adds those that it gets.
        until_s: deadline, by `time.monotonic`.
    """
    config = EvalConfig(
        device="emulated",
        world_size=args.world_size,
        size="tiny",
        detect_races=True,
        timeout_s=MUTANT_TIMEOUT_S,
        compile_timeout_s=COMPILE_TIMEOUT_S,
    )
    for seeds in (*(most for most in SEEDS_OF_ROUNDS if most < args.seeds), args.seeds):
        sofar = [replace(judged, row=rows.get(judged.row.key, judged.row)) for judged in mutants]
        orders = [Order(judged, config, seeds) for judged in sofar if not judged.row.is_settled(seeds)]
        for _, row in sharded(
            judge_order,
            orders,
            jobs=args.jobs,
            until_s=until_s,
            compiled=args.compiled,
            key=b"mutants",
            prepare=build_emulator,
        ):
            yield row


def markdown(rows: Sequence[Row], seeds: int = 1) -> str:
    """A table by kind: mutants, found, by which failure, with a pair of lines; then those that were not found.

    Args:
        rows: of a result.
        seeds: most of a mutant; those that passed with fewer are left out.
    """
    lines = ["| kind | mutants | found | race | by line of the operation | two places | seeds needed |"]
    lines.append("|---|---|---|---|---|---|---|")
    wrong = [row for row in rows if row.is_wrong and row.evaluations and row.is_settled(seeds)]
    for kind in [*sorted({row.kind for row in wrong}), "all"]:
        of_kind = [row for row in wrong if kind in (row.kind, "all")]
        found = [row for row in of_kind if row.seed is not None]
        races = [row for row in found if row.failure == "race"]
        pairs = sum(len(row.places) >= PAIR for row in races)
        most = max((row.seed + 1 for row in found if row.seed is not None), default=0)
        named = sum(row.names_line for row in found)
        lines.append(f"| {kind} | {len(of_kind)} | {len(found)} | {len(races)} | {named} | {pairs} | {most} |")
    unreached = sum(row.reached is False for row in rows)
    lines += ["", f"{unreached} more are of operations that the kernel does not come to."]
    lines += ["", *(f"not found: {row.problem}, {row.kind}, {row.mutant}" for row in wrong if row.seed is None)]
    return "\n".join(lines)


def save(path: Path, row: Row, head: Mapping[str, object], rows: Sequence[Row]) -> None:
    """Prints a row, and writes the result with it.

    Args:
        path: of the result.
        row: the new one.
        head: of the result.
        rows: all.
    """
    print(f"{row.problem}, {row.mutant or 'expert'}: {row.failure or 'passed'} {row.seconds} s", file=sys.stderr)
    saved = [{name: value for name, value in asdict(each).items() if name != "commit" or value} for each in rows]
    content = {**head, "rows": saved}
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def experts(problems: Sequence[Problem]) -> list[Judged]:
    """The unchanged experts."""
    sources = ((problem.name, expert_source(problem, "cu")) for problem in problems)
    return [Judged(source, Row(name, "", "", None)).with_digest() for name, source in sources if source]


def load(path: Path) -> list[Row]:
    """Rows of a result; none where there is no such file."""
    if not path.exists():
        return []
    rows = [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    return [
        replace(row, places=tuple(row.places), equivalent=row.equivalent or AT_TINY.get((row.problem, row.mutant)))
        for row in rows
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Judges and saves."""
    parser = make_parser("emulated_mutants", __doc__)
    parser.add_argument("--world-size", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all that have an expert.cu")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="default: all")
    parser.add_argument("--sample", type=int, default=80, metavar="N", help="mutants (default: %(default)s)")
    parser.add_argument("--draw", type=int, default=0, metavar="SEED", help="of the sample (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="most of a mutant (default: %(default)s)")
    parser.add_argument("--experts", action="store_true", help="the unchanged experts too, with every seed")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="what is not done by then is left out")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of compiled files (default: the user's cache)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the table of a result")
    args = parser.parse_args(argv)
    if args.render is not None:
        print(markdown(load(args.render), args.seeds))
        return 0
    until_s = time.monotonic() + args.budget_s
    problems = [find_problem(name) for name in args.problems] if args.problems else catalogue()
    problems = [problem for problem in problems if expert_source(problem, "cu")]
    mutants = sampled(args, problems)
    if args.experts:
        mutants += experts(problems)
    path = args.out / "emulated_mutants.json"
    rows = {row.key: row for row in load(path) if not row.not_judged}
    about = {"world_size": args.world_size, "sample": args.sample, "draw": args.draw, "seeds": args.seeds}
    for row in judge_emulated(args, mutants, rows, until_s):
        rows[row.key] = row
        save(path, row, header() | about, list(rows.values()))
    judged = load(path)
    print(markdown(judged, args.seeds))
    unexpected = [row for row in judged if row.is_settled(args.seeds) and not row.is_as_expected]
    for row in unexpected:
        print(f"{row.problem}, {row.kind}, {row.mutant or 'expert'}: {row.message or 'passed'}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
