"""Throughput of pools of 1, 2, 4 and 8 gangs on the CPU device of this machine.

    python -m benchmarks.ray_gangs [--budget-s S] [--out FOLDER]

Checks of the expert kernel of AllReduce at `tiny` on 2 ranks, compiled before. Gangs of one machine share its
processors: figures say how well a pool uses them, not how it scales beyond. A run begins no further pool after the
budget; a further run of the same commit measures those that are missing.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, save, unfinished
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
        evaluations: that were submitted.
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
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no pool after so long")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    args = parser.parse_args()
    began = time.monotonic()
    before = unfinished(args.out / "ray_gangs.json")
    rows = {row["gangs"]: Row(**row) for row in before["rows"]} if before is not None else {}
    with local_cluster(head_cpus=8):
        for gangs in args.gangs:
            if time.monotonic() - began > args.budget_s:
                break
            if gangs not in rows or rows[gangs].evaluations != args.evaluations:
                rows[gangs] = measure(gangs, args.evaluations)
                save("ray_gangs", {"rows": [asdict(rows[number]) for number in sorted(rows)]}, args.out)


if __name__ == "__main__":
    main()
