"""Every expert kernel of the CPU device against the baseline, at tiny and published, on 1, 2 and 4 ranks.

python -m benchmarks.experts [PROBLEM ...]
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common import read_problems, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

SIZES = ("tiny", "published")
WORLD_SIZES = (1, 2, 4)
BUDGET_S = 2.0
"""Timing of each; more makes intervals narrower."""


def main() -> None:
    """Measures and saves."""
    problems = [find_problem(name) for name in read_problems("experts", __doc__)] or [
        p for p in catalogue() if expert_source(p)
    ]
    rows: list[dict[str, Any]] = []
    with LocalEvaluator() as evaluator:
        for problem in problems:
            source = expert_source(problem)
            assert source is not None
            for size in SIZES:
                for world_size in WORLD_SIZES:
                    config = EvalConfig(
                        device="cpu", world_size=world_size, size=size, until="time", timing_budget_s=BUDGET_S
                    )
                    feedback = evaluator.evaluate(problem, source, config)
                    row = {"problem": problem.name, "size": size, "world_size": world_size, "passed": feedback.passed}
                    if feedback.timing is not None and feedback.roofline is not None:
                        row |= {
                            "baseline_us": round(feedback.timing.baseline_us, 1),
                            "candidate_us": round(feedback.timing.candidate_us, 1),
                            "speedup": round(feedback.timing.speedup, 3),
                            "speedup_low": round(feedback.timing.speedup_low, 3),
                            "ceiling_us": round(feedback.roofline.ceiling_us, 2),
                            "binds": feedback.roofline.binds,
                            "utilisation": feedback.roofline.candidate_utilisation,
                        }
                    else:
                        row |= {"message": feedback.message[:500]}
                    print(row, file=sys.stderr)
                    rows.append(row)
    save("experts", {"rows": rows})


if __name__ == "__main__":
    main()
