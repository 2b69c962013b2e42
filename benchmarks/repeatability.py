"""The same candidate 20 times at size "published" on 2 ranks: how far do measured speedups scatter?

Once for an expert kernel, once for a candidate that is the baseline itself: its interval should contain 1.

python -m benchmarks.repeatability [PROBLEM ...]
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks.common import read_problems, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.timing import Timing
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source

REPETITIONS = 20
WORLD_SIZE = 2


def repeat(evaluator: LocalEvaluator, problem: Problem, source: str) -> dict[str, Any]:
    """Speedups and intervals of repeated evaluations."""
    config = EvalConfig(device="cpu", world_size=WORLD_SIZE, size="published", until="time")
    timings: list[Timing] = []
    for _ in range(REPETITIONS):
        feedback = evaluator.evaluate(problem, source, config)
        assert feedback.timing is not None, feedback.message
        timings.append(feedback.timing)
        print(f"{problem.name}: {feedback.timing.speedup:.3f}", file=sys.stderr)
    speedups = [timing.speedup for timing in timings]
    mean = statistics.mean(speedups)
    return {
        "baseline_us": round(statistics.median(timing.baseline_us for timing in timings), 1),
        "speedup_median": round(statistics.median(speedups), 4),
        "coefficient_of_variation": round(statistics.stdev(speedups) / mean, 4),
        "intervals_with_one": sum(timing.speedup_low <= 1 <= timing.speedup_high for timing in timings),
        "speedups": [round(speedup, 4) for speedup in speedups],
        "intervals": [[round(timing.speedup_low, 4), round(timing.speedup_high, 4)] for timing in timings],
    }


def main() -> None:
    """Measures and saves."""
    names = read_problems("repeatability", __doc__) or ["AllReduce"]
    result: dict[str, Any] = {"repetitions": REPETITIONS, "world_size": WORLD_SIZE}
    with LocalEvaluator() as evaluator:
        for name in names:
            problem = find_problem(name)
            expert = expert_source(problem)
            assert expert is not None
            result[problem.name] = {
                "expert": repeat(evaluator, problem, expert),
                "baseline_as_candidate": repeat(evaluator, problem, reference_source(problem)),
            }
    save("repeatability", result)


if __name__ == "__main__":
    main()
