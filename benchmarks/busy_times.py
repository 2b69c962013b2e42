"""Times of one kernel alone and beside other submissions: do speedups and rewards hold when the machine is busy?

python -m benchmarks.busy_times [--device cpu|cuda] [--world-size N] [--evaluations N] [--beside N]

The expert of AllReduce at size published, compiled before. Rounds alternate: some evaluations with the evaluator to
itself, and as many while others submit fresh sources to it, which it compiles, each a new one as soon as it has an
answer.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.timing import Timing
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.rewards import find_reward

PROBLEM = find_problem("AllReduce")
ROUNDS = 2
SUFFIX = {"cpu": "cpp", "cuda": "cu"}


def main() -> None:
    """Measures and saves."""
    options = _options()
    source = expert_source(PROBLEM, SUFFIX[options.device])
    assert source is not None
    config = EvalConfig(device=options.device, world_size=options.world_size, size="published", until="time")
    alone: list[Feedback] = []
    beside: list[Feedback] = []
    with LocalEvaluator() as evaluator:

        def evaluate() -> Feedback:
            feedback = evaluator.evaluate(PROBLEM, source, config)
            print(f"{_timing(feedback).speedup:.3f}", file=sys.stderr)
            return feedback

        evaluate()  # compiles it, and prepares gangs
        for _ in range(ROUNDS):
            alone += [evaluate() for _ in range(options.evaluations)]
            with fresh_submissions(evaluator, source, config, options.beside):
                beside += [evaluate() for _ in range(options.evaluations)]
    columns = {"alone": column(alone), "beside": column(beside)}
    result = {
        "device": options.device,
        "world_size": options.world_size,
        "beside_submissions": options.beside,
        "load_average": os.getloadavg()[0],
        **columns,
        "beside_over_alone": compared(columns["alone"], columns["beside"]),
    }
    save(f"busy_times_{options.device}", result)


def _options() -> argparse.Namespace:
    parser = make_parser("busy_times", __doc__)
    parser.add_argument("--device", choices=tuple(SUFFIX), default="cpu", help="(default: cpu)")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--evaluations", type=int, default=5, metavar="N", help="of a round, each way (default: 5)")
    parser.add_argument("--beside", type=int, default=14, metavar="N", help="other submissions (default: 14)")
    return parser.parse_args()


@contextmanager
def fresh_submissions(evaluator: LocalEvaluator, source: str, config: EvalConfig, count: int) -> Iterator[None]:
    """Meanwhile so many callers have sources compiled that nobody has compiled before.

    Args:
        evaluator: Evaluator that compiles them.
        source: Source that all of them are, but for a comment.
        config: Configuration of the evaluations, which end after the compile.
        count: Number of callers, at least 1.
    """
    ended, until_compile = threading.Event(), config.model_copy(update={"until": "compile"})

    def submit() -> None:
        while not ended.is_set():
            evaluator.evaluate(PROBLEM, f"// {os.getpid()} {next(_NUMBERS)}\n{source}", until_compile)

    callers = [threading.Thread(target=submit) for _ in range(count)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        ended.set()
        for caller in callers:
            caller.join()


_NUMBERS = itertools.count()


def column(feedbacks: Sequence[Feedback]) -> dict[str, Any]:
    """Speedups, times and rewards of one column."""
    timings = [_timing(feedback) for feedback in feedbacks]
    speedups = [timing.speedup for timing in timings]
    reward = find_reward("default")
    return {
        "speedup_median": round(statistics.median(speedups), 4),
        "coefficient_of_variation": round(statistics.stdev(speedups) / statistics.mean(speedups), 4),
        "speedups": [round(speedup, 4) for speedup in speedups],
        "speedups_low": [round(timing.speedup_low, 4) for timing in timings],
        "baseline_us": [round(timing.baseline_us, 1) for timing in timings],
        "kernel_us": [round(timing.candidate_us, 1) for timing in timings],
        "pairs": [len(timing.blocks) for timing in timings],
        "delayed_pairs": [timing.delayed_pairs for timing in timings],
        "rewards": [round(reward(feedback) or 0.0, 4) for feedback in feedbacks],
    }


def compared(alone: dict[str, Any], beside: dict[str, Any]) -> dict[str, float]:
    """Ratios of medians and coefficients of variation, and the largest difference of a reward from the median alone."""
    usual = statistics.median(alone["rewards"])
    return {
        "speedup_median": round(beside["speedup_median"] / alone["speedup_median"], 4),
        "coefficient_of_variation": round(beside["coefficient_of_variation"] / alone["coefficient_of_variation"], 3),
        "largest_reward_difference": round(max(abs(reward - usual) for reward in beside["rewards"]), 4),
    }


def _timing(feedback: Feedback) -> Timing:
    assert feedback.timing is not None, feedback.message
    return feedback.timing


if __name__ == "__main__":
    main()
