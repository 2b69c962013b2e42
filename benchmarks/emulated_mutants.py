"""Experts without one of their synchronisations, or with a weak one, on emulated GPUs with the race detector.

A mutant is found if one of its evaluations, with the seeds 0, 1, 2 ... in turn, does not pass. The first such seed, the
failure, and whether a finding names the line of the mutated operation are recorded. The unchanged experts are judged
with every seed.

python -m benchmarks.emulated_mutants [--world-size N] [--problems NAME ...] [--kinds KIND ...] [--seeds N]
                                      [--experts N] [--each N] [--threads N] [--budget-s S] [--out FOLDER]

Exit status: 0 if every mutant that is not equivalent was found and no expert was refused, else 1.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.equivalent_mutants import reason_why
from benchmarks.mutants import NO_VERDICT
from benchmarks.synchronisation import InlinedSource
from benchmarks.weakened_operations import weakened
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

MOST_MESSAGE = 1200
MUTANT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Row:
    """The verdicts on one mutant, or on an unchanged expert.

    Attributes:
        problem: its name.
        kind: of the operation; "" for the expert.
        mutant: what is changed where; "" for the expert.
        line: of the mutated operation in the mutant's source; None for the expert.
        equivalent: why the mutant is right all the same, or None.
        evaluations: how many gave a verdict.
        not_judged: how many gave none.
        seed: the first with which it was refused; None if it passed with all of them.
        failure: of that evaluation; "" if none.
        names_line: whether its message names the line of the operation.
        message: of that evaluation; "" if none.
        seconds: that all evaluations took.
    """

    problem: str
    kind: str
    mutant: str
    line: int | None
    equivalent: str | None = None
    evaluations: int = 0
    not_judged: int = 0
    seed: int | None = None
    failure: str = ""
    names_line: bool = False
    message: str = ""
    seconds: float = 0.0

    @property
    def is_as_expected(self) -> bool:
        """A wrong mutant is found, an expert or an equivalent mutant is not."""
        is_right = not self.mutant or self.equivalent is not None
        return self.evaluations > 0 and (self.seed is None) == is_right


@dataclass(frozen=True)
class Judged:
    """A source and what is known of it."""

    source: str
    row: Row


def mutants_of(problem: Problem, text: str) -> Iterator[Judged]:
    """Those without an operation, and those with one that is too weak.

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
        yield Judged(mutant.source, Row(problem.name, f"no {mutant.kind}", mutant.name, line, reason))
    for weak in weakened(text):
        yield Judged(weak.source, Row(problem.name, weak.kind, weak.name, weak.line))


def judge(evaluator: LocalEvaluator, judged: Judged, config: EvalConfig, seeds: int, first_only: bool) -> Row:
    """Evaluates with one seed after the other.

    Args:
        evaluator: that judges.
        judged: the source.
        config: all but the seed.
        seeds: how many.
        first_only: whether the first refusal ends it.
    """
    row, begin = judged.row, time.monotonic()
    for seed in range(seeds):
        feedback = evaluator.evaluate(
            find_problem(row.problem), judged.source, config.model_copy(update={"seed": seed})
        )
        if feedback.failure in NO_VERDICT:
            row = replace(row, not_judged=row.not_judged + 1, message=row.message or feedback.message[:MOST_MESSAGE])
            break  # no other seed makes it compile
        row = replace(row, evaluations=row.evaluations + 1)
        if feedback.passed or row.seed is not None:
            continue
        names_line = row.line is not None and re.search(rf":{row.line}\b", feedback.message) is not None
        row = replace(
            row,
            seed=seed,
            failure=str(feedback.failure),
            names_line=names_line,
            message=feedback.message[:MOST_MESSAGE],
        )
        if first_only:
            break
    return replace(row, seconds=round(time.monotonic() - begin, 2))


def chosen(problems: Sequence[Problem], kinds: Sequence[str], each: int) -> list[Judged]:
    """Mutants of the kinds, of each kind and problem at most so many, spread evenly over the source."""
    all_chosen: list[Judged] = []
    for problem in problems:
        text = expert_source(problem, "cu")
        assert text is not None, problem.name
        of_kind: dict[str, list[Judged]] = {}
        for judged in mutants_of(problem, text):
            if not kinds or judged.row.kind in kinds:
                of_kind.setdefault(judged.row.kind, []).append(judged)
        for found in of_kind.values():
            step = max(1.0, len(found) / each)
            all_chosen += [found[int(i * step)] for i in range(min(each, len(found)))]
    return all_chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Judges and saves."""
    parser = make_parser("emulated_mutants", __doc__)
    parser.add_argument("--world-size", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all that have an expert.cu")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="default: all")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="most of a mutant (default: %(default)s)")
    parser.add_argument("--experts", type=int, default=20, metavar="N", help="of each expert (default: %(default)s)")
    parser.add_argument("--each", type=int, default=1000, metavar="N", help="mutants of a kind and problem")
    parser.add_argument("--threads", type=int, default=2, help="evaluations at a time (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="no evaluation begins after this")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    until_s = time.monotonic() + args.budget_s
    problems = [find_problem(name) for name in args.problems] if args.problems else catalogue()
    problems = [problem for problem in problems if expert_source(problem, "cu")]
    config = EvalConfig(
        device="emulated",
        world_size=args.world_size,
        size="tiny",
        detect_races=True,
        timeout_s=MUTANT_TIMEOUT_S,
        compile_timeout_s=600,
    )
    experts = [Judged(expert_source(problem, "cu") or "", Row(problem.name, "", "", None)) for problem in problems]
    path = args.out / "emulated_mutants.json"
    rows: list[Row] = []
    with LocalEvaluator() as evaluator, ThreadPoolExecutor(args.threads) as pool:

        def judge_one(judged: Judged) -> Row | None:
            if time.monotonic() > until_s:
                return None
            is_mutant = bool(judged.row.mutant)
            row = judge(evaluator, judged, config, args.seeds if is_mutant else args.experts, first_only=is_mutant)
            print(
                f"{row.problem}, {row.mutant or 'expert'}: {row.failure or 'passed'} {row.seconds} s", file=sys.stderr
            )
            return row

        work = [*chosen(problems, args.kinds, args.each), *(experts if args.experts else [])]
        for row in pool.map(judge_one, work):
            if row is None:
                continue
            rows.append(row)
            about = {"world_size": args.world_size, "seeds": args.seeds, "experts": args.experts}
            content = header() | about | {"rows": [asdict(each) for each in rows]}
            write_atomically(path, json.dumps(content, indent=1) + "\n")
    wrong = [row for row in rows if row.mutant and row.equivalent is None and row.evaluations]
    found = [row for row in wrong if row.seed is not None]
    print(f"{len(found)} of {len(wrong)} mutants found, {sum(row.names_line for row in found)} by the operation's line")
    unexpected = [row for row in rows if not row.is_as_expected]
    for row in unexpected:
        print(f"{row.problem}, {row.kind}, {row.mutant or 'expert'}: {row.message or 'passed'}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
