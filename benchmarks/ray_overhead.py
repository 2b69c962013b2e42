"""Cost of a pool of one gang beside the local evaluator: milliseconds of an evaluation, and throughput.

    python -m benchmarks.ray_overhead [--budget-s S] [--out FOLDER]

The expert kernel of AllReduce at `tiny` on 2 ranks, compiled before, checked on fresh inputs. One evaluation at a time,
the two evaluators in turns; then several at a time, each evaluator for itself. The first part ends early at half of the
budget, and the second takes as many evaluations. On an idle machine.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, save
from benchmarks.ray_cluster import local_cluster
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

ADDRESS = "ray?pool=overhead&shared_most=0&exclusive_most=1"
PROBLEM = find_problem("AllReduce")
SOURCE = expert_source(PROBLEM) or ""


@dataclass(frozen=True)
class Overhead:
    """Local evaluator against a pool of one gang.

    Attributes:
        evaluations: of each evaluator, one at a time, and again several at a time.
        local_p50_ms, ray_p50_ms: median wall time of one.
        overhead_p50_ms: median of the differences of neighbours.
        side_by_side: evaluations that were submitted at the same time.
        local_per_minute, ray_per_minute: throughput.
        throughput_share: of the pool, of the local evaluator's.
    """

    evaluations: int
    local_p50_ms: float
    ray_p50_ms: float
    overhead_p50_ms: float
    side_by_side: int
    local_per_minute: float
    ray_per_minute: float
    throughput_share: float


def measure(
    local: Evaluator, cluster: Evaluator, evaluations: int, side_by_side: int, budget_s: float = float("inf")
) -> Overhead:
    """Measures both.

    Args:
        local: of this machine.
        cluster: of one gang on it.
        evaluations: of each, in either part.
        side_by_side: in the second part.
        budget_s: of both parts, about.
    """
    began = time.monotonic()
    seeds = itertools.count()
    for evaluator in (local, cluster):
        _evaluate(evaluator, next(seeds))  # processes start, and the kernel is compiled
    pairs: list[tuple[float, float]] = []
    while not pairs or (len(pairs) < evaluations and time.monotonic() - began < budget_s / 2):
        pairs.append((_evaluate(local, next(seeds)), _evaluate(cluster, next(seeds))))
    local_rate, ray_rate = (_per_minute(each, seeds, len(pairs), side_by_side) for each in (local, cluster))
    return Overhead(
        evaluations=len(pairs),
        local_p50_ms=1e3 * statistics.median(pair[0] for pair in pairs),
        ray_p50_ms=1e3 * statistics.median(pair[1] for pair in pairs),
        overhead_p50_ms=1e3 * statistics.median(ray - here for here, ray in pairs),
        side_by_side=side_by_side,
        local_per_minute=local_rate,
        ray_per_minute=ray_rate,
        throughput_share=ray_rate / local_rate,
    )


def _evaluate(evaluator: Evaluator, seed: int) -> float:
    """Seconds of one evaluation."""
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", seed=seed)
    began = time.perf_counter()
    feedback = evaluator.evaluate(PROBLEM, SOURCE, config)
    if not feedback.passed:
        raise RuntimeError(f"the expert kernel failed: {feedback.message}")
    return time.perf_counter() - began


def _per_minute(evaluator: Evaluator, seeds: Iterator[int], evaluations: int, side_by_side: int) -> float:
    numbers = list(itertools.islice(seeds, evaluations))
    began = time.perf_counter()
    with ThreadPoolExecutor(side_by_side) as threads:
        list(threads.map(lambda seed: _evaluate(evaluator, seed), numbers))
    return 60 * evaluations / (time.perf_counter() - began)


def main() -> None:
    """Measures and saves."""
    parser = make_parser("ray_overhead", __doc__)
    parser.add_argument("--evaluations", type=int, default=200, help="of each evaluator in each part (default: 200)")
    parser.add_argument("--side-by-side", type=int, default=8, help="in the second part (default: 8)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="of both parts, about")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    args = parser.parse_args()
    with local_cluster(head_cpus=4), RayEvaluator(ADDRESS) as cluster, LocalEvaluator() as local:
        result = measure(local, cluster, args.evaluations, args.side_by_side, args.budget_s)
    save("ray_overhead", asdict(result), args.out)


if __name__ == "__main__":
    main()
