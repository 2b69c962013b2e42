"""A Ray pool under load: its cost beside the local evaluator, and the throughput of several gangs.

    python -m benchmarks.ray_load [--evaluations N] [--side-by-side N] [--gangs N ...] [--budget-s S] [--out FOLDER]

Checks of the expert kernel of AllReduce at `tiny` on 2 ranks, compiled before, on a cluster of this machine alone. A
pool of one gang and the local evaluator judge in turns, one evaluation at a time, and then several at a time, each for
itself. Pools of several gangs share the processors: their figures show how well a pool uses them, not how it scales
beyond. No part begins after the budget. On an idle machine.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEM = find_problem("AllReduce")
SOURCE = expert_source(PROBLEM) or ""
LOGICAL_CPUS = 8
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
"""Environment of Ray: nothing is sent anywhere, and workers yield to no other program."""


def evaluate(evaluator: Evaluator, seed: int) -> float:
    """Seconds of one evaluation.

    Raises:
        RuntimeError: The expert kernel failed.
    """
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", seed=seed)
    began = time.perf_counter()
    feedback = evaluator.evaluate(PROBLEM, SOURCE, config)
    if not feedback.passed:
        raise RuntimeError(f"the expert kernel failed: {feedback.message}")
    return time.perf_counter() - began


def per_minute(evaluator: Evaluator, seeds: Iterator[int], evaluations: int, side_by_side: int) -> float:
    """Evaluations a minute, with so many submitted at a time."""
    numbers = list(itertools.islice(seeds, evaluations))
    began = time.perf_counter()
    with ThreadPoolExecutor(side_by_side) as threads:
        list(threads.map(lambda seed: evaluate(evaluator, seed), numbers))
    return 60 * evaluations / (time.perf_counter() - began)


def overhead(evaluations: int, side_by_side: int) -> dict[str, float]:
    """Milliseconds and throughput of a pool of one gang beside the local evaluator.

    Args:
        evaluations: Evaluations of each evaluator in each part, at least 1.
        side_by_side: Evaluations that are submitted at a time in the second part, at least 1.
    """
    seeds = itertools.count()
    with RayEvaluator("ray?pool=overhead&shared_most=0&exclusive_most=1") as pool, LocalEvaluator() as local:
        for evaluator in (local, pool):
            evaluate(evaluator, next(seeds))  # processes start, and the kernel is compiled
        pairs = [(evaluate(local, next(seeds)), evaluate(pool, next(seeds))) for _ in range(evaluations)]
        local_rate, pool_rate = (per_minute(each, seeds, evaluations, side_by_side) for each in (local, pool))
    return {
        "evaluations": evaluations,
        "side_by_side": side_by_side,
        "local_p50_ms": 1e3 * statistics.median(pair[0] for pair in pairs),
        "ray_p50_ms": 1e3 * statistics.median(pair[1] for pair in pairs),
        "overhead_p50_ms": 1e3 * statistics.median(ray_s - local_s for local_s, ray_s in pairs),
        "local_per_minute": local_rate,
        "ray_per_minute": pool_rate,
        "throughput_share": pool_rate / local_rate,
    }


def throughput(gangs: int, evaluations: int) -> dict[str, float]:
    """Throughput of a pool of so many gangs, which have begun before."""
    limits = f"shared_most=0&exclusive_least={gangs}&exclusive_most={gangs}&cpus_per_rank=0.25"
    with RayEvaluator(f"ray?pool=gangs-{gangs}&{limits}") as pool:
        seeds = itertools.count()
        per_minute(pool, seeds, 4 * gangs, 2 * gangs)
        return {
            "gangs": gangs,
            "evaluations": evaluations,
            "per_minute": per_minute(pool, seeds, evaluations, 2 * gangs),
        }


def main() -> None:
    """Measures and saves."""
    parser = make_parser("ray_load", __doc__)
    parser.add_argument("--evaluations", type=int, default=200, help="of each part (default: %(default)s)")
    parser.add_argument("--side-by-side", type=int, default=8, help="submitted at a time (default: %(default)s)")
    parser.add_argument("--gangs", type=int, nargs="*", default=[1, 2, 4, 8], help="of pools (default: 1 2 4 8)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no pool of gangs after so long")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    args = parser.parse_args()
    began = time.monotonic()
    os.environ |= ENVIRONMENT
    import ray  # reads its environment

    ray.init("local", num_cpus=LOGICAL_CPUS, include_dashboard=False, log_to_driver=False, namespace="pkb")
    try:
        of_one = overhead(args.evaluations, args.side_by_side)
        rows = [
            throughput(gangs, args.evaluations) for gangs in args.gangs if time.monotonic() - began <= args.budget_s
        ]
    finally:
        ray.shutdown()
    save("ray_load", {"overhead": of_one, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
