"""Right kernels over and over, each time with another seed: one that is refused is a false alarm.

    python -m benchmarks.honest_evaluations [--device cpu] [--evaluations 2000] [PROBLEM ...]

Every problem's reference and, where there is one, its expert, at `tiny`, until they have been timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Literal

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, reference_source

BUDGET_S = 0.1
"""Timing of each: what matters here is that timed calls are right."""


@dataclass
class Row:
    """A kernel's evaluations.

    Attributes:
        problem: that it solves.
        kernel: which.
        evaluations: how many there were.
        refused: the message of each that did not pass.
        unjudged: how many the machine could not judge.
    """

    problem: str
    kernel: Literal["expert", "reference"]
    evaluations: int = 0
    refused: list[str] = field(default_factory=list)
    unjudged: int = 0


def right_kernels(problems: Iterable[Problem], device: Device) -> Iterator[tuple[Row, Problem, str]]:
    """Each kernel with an empty row, its problem and its source."""
    for problem in problems:
        yield Row(problem.name, "reference"), problem, reference_source(problem)
        expert = expert_source(problem, "cpp" if device == "cpu" else "cu")
        if expert is not None:
            yield Row(problem.name, "expert"), problem, expert


def evaluate_all(
    evaluator: Evaluator, kernels: list[tuple[Row, Problem, str]], device: Device, world_size: int, evaluations: int
) -> list[Row]:
    """Evaluates the kernels in turn, as often as asked in all, and fills their rows.

    Args:
        evaluator: judges.
        kernels: see `right_kernels`.
        device: that they run on.
        world_size: number of ranks.
        evaluations: how many in all.
    """
    rounds = ((seed, *kernel) for seed in count() for kernel in kernels)
    for number, (seed, row, problem, source) in enumerate(islice(rounds, evaluations), start=1):
        config = EvalConfig(
            device=device, world_size=world_size, size="tiny", until="time", seed=seed, timing_budget_s=BUDGET_S
        )
        feedback = evaluator.evaluate(problem, source, config)
        row.evaluations += 1
        if feedback.failure is Failure.INFRASTRUCTURE:
            row.unjudged += 1
        elif not feedback.passed:
            row.refused.append(f"seed {seed}: {feedback.failure}: {feedback.message[:500]}")
            print(row, file=sys.stderr)
        if number % 100 == 0:
            print(f"{number} of {evaluations}", file=sys.stderr)
    return [row for row, _, _ in kernels]


def main() -> None:
    """Evaluates and saves."""
    parser = make_parser("honest_evaluations", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=2000, help="in all (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args()
    problems = [find_problem(name) for name in args.problems] or list(catalogue())
    with LocalEvaluator() as evaluator:
        kernels = list(right_kernels(problems, args.device))
        rows = evaluate_all(evaluator, kernels, args.device, args.world_size, args.evaluations)
    result = {
        "device": args.device,
        "world_size": args.world_size,
        "evaluations": sum(row.evaluations for row in rows),
        "refused": sum(len(row.refused) for row in rows),
        "unjudged": sum(row.unjudged for row in rows),
        "rows": [asdict(row) for row in rows],
    }
    save(
        "honest_evaluations" if args.device == "cpu" else f"honest_evaluations_{args.world_size}_gpus", result, args.out
    )


if __name__ == "__main__":
    main()
