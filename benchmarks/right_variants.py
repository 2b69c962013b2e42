"""Right arithmetic in other forms, judged at `tiny` on 2 and 4 ranks: which of it is refused?

Each call of a candidate is a variant of the problem's reference, with a seed of its own: sums in another order, in
parts, exactly or around another ring; products in parts; functions some units in the last place off; multiplications
and additions fused or not; scalars rounded first or not; equal elements in any order; every third in float32 throughout
where the problem leaves that open.

python -m benchmarks.right_variants [PROBLEM ...] [--seed SEED]
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.authoring.freedoms import freedom_of
from pkb_gym.authoring.mutants import other_source
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, find_problem, reference_source

WORLD_SIZES = (2, 4)
SEEDS_BETWEEN = 100
"""Seeds between two evaluations, more than an evaluation has checked calls."""


def judge(evaluator: Evaluator, problem: Problem, world_size: int, seed: int) -> dict[str, Any]:
    """Verdict on the variants of as many seeds, from `seed` on, as an evaluation has checked calls."""
    source = other_source(problem, reference_source(problem), seed, freedom_of(problem))
    config = EvalConfig(device="cpu", world_size=world_size, size="tiny", language="python", until="check", seed=seed)
    begun = time.monotonic()
    feedback = evaluator.evaluate(problem, source, config)
    print(f"{problem.name}, {world_size} ranks: {feedback.failure or 'passed'}", file=sys.stderr)
    row = {
        "problem": problem.name,
        "world_size": world_size,
        "seed": seed,
        "variants": feedback.check.trials if feedback.check is not None else 0,
        "passed": feedback.passed,
        "seconds": round(time.monotonic() - begun, 2),
    }
    return row if feedback.passed else row | {"message": feedback.message}


def study(evaluator: Evaluator, problems: list[Problem], seed: int) -> dict[str, Any]:
    """Verdicts on the variants of all problems and world sizes."""
    rows = [
        judge(evaluator, problem, world_size, seed + SEEDS_BETWEEN * number)
        for problem in problems
        for number, world_size in enumerate(WORLD_SIZES)
        if world_size in problem.world_sizes
    ]
    return {
        "problems": len(problems),
        "variants": sum(row["variants"] for row in rows),
        "evaluations": len(rows),
        "evaluations_refused": sum(not row["passed"] for row in rows),
        "rows": rows,
    }


def main() -> None:
    """Judges and saves."""
    parser = make_parser("right_variants", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="seed of the first variant (default: 0)")
    args = parser.parse_args()
    problems = [find_problem(name) for name in args.problems] or list(catalogue())
    with LocalEvaluator() as evaluator:
        save("right_variants", study(evaluator, problems, args.seed))


if __name__ == "__main__":
    main()
