"""Throughput of pools of 1, 2, 4 and 8 gangs on the CPU device of this machine.

    python -m benchmarks.ray_gangs

Checks of the expert kernel of AllReduce at `tiny` on 2 ranks, compiled before. Gangs of one machine share its
processors: figures say how the pool uses what there is, not how it scales beyond.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.common import make_parser, save
from benchmarks.ray_cluster import local_cluster
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEM = find_problem("AllReduce")
SOURCE = expert_source(PROBLEM) or ""


@dataclass(frozen=True)
class Row:
    """A pool.

    Attributes:
        gangs: of it.
        evaluations: that were asked for.
        wall_s: from the first request to the last answer, gangs started before.
        per_minute: evaluations a minute.
    """

    gangs: int
    evaluations: int
    wall_s: float
    per_minute: float


def measure(gangs: int, evaluations: int) -> Row:
    """Measures a pool of so many gangs on the cluster that this process is connected to."""
    limits = f"shared_most=0&exclusive_least={gangs}&exclusive_most={gangs}&cpus_per_rank=0.25"
    with RayEvaluator(f"ray?pool=gangs-{gangs}&{limits}") as evaluator, ThreadPoolExecutor(2 * gangs) as threads:

        def evaluate(seed: int) -> None:
            config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", seed=seed)
            feedback = evaluator.evaluate(PROBLEM, SOURCE, config)
            if not feedback.passed:
                raise RuntimeError(f"the expert kernel failed: {feedback.message}")

        list(threads.map(evaluate, range(-4 * gangs, 0)))  # every gang has begun
        began = time.perf_counter()
        list(threads.map(evaluate, range(evaluations)))
        wall_s = time.perf_counter() - began
    return Row(gangs, evaluations, wall_s, 60 * evaluations / wall_s)


def main() -> None:
    """Measures and saves."""
    parser = make_parser("ray_gangs", __doc__)
    parser.add_argument(
        "--gangs", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of gangs (default: 1 2 4 8)"
    )
    parser.add_argument("--evaluations", type=int, default=200, help="of each pool (default: 200)")
    args = parser.parse_args()
    with local_cluster(head_cpus=8):
        rows = [measure(gangs, args.evaluations) for gangs in args.gangs]
    save("ray_gangs", {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
