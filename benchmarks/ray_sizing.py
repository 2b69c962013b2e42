"""Gangs, processors, bytes and cost of a cluster: the arithmetic of docs/scaling.md, from measured durations and sizes.

    python -m benchmarks.ray_sizing [--gpu-hour PRICE] [--core-hour PRICE]

Prints the table of the page, with prices also the cost. Durations are medians of the evaluations in
results/command_times.json (AllReduce, `tiny`, 2 ranks, CPU device), sizes those of results/ray_bytes.json; the
durations of other kernels and machines are in the `durations_s` of any record of feedback. Where there is a
results/ray_scale.json, the most evaluations a second that one pool hands out are printed, too.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass

from benchmarks.common import RESULTS, make_parser
from benchmarks.ray_sleeper import CHECK_STAGES, measured

GPUS = (8, 64, 256, 1000)
WORLD_SIZE = 8
UTILISATION = 0.95
PASSING_SHARE = 0.7
"""Of evaluations, that are right and so take an exclusive gang; an assumption of the example."""

CHECKS_PER_GANG = 2


@dataclass(frozen=True)
class Costs:
    """The costs of one evaluation.

    Attributes:
        compile_s: processor time of its compile in seconds.
        check_s: time on a shared gang.
        exclusive_s: time on an exclusive gang, where it is right.
        network_bytes: of messages, artifacts and records between nodes.
    """

    compile_s: float
    check_s: float
    exclusive_s: float
    network_bytes: float


@dataclass(frozen=True)
class Size:
    """The size of a cluster whose GPUs are all busy.

    Attributes:
        gpus: of it.
        exclusive, shared: gangs.
        per_s: evaluations a second.
        compile_cores: processors that compile.
        network_bytes_per_s: between its nodes.
    """

    gpus: int
    exclusive: int
    shared: int
    per_s: float
    compile_cores: int
    network_bytes_per_s: float

    def cost_per_h(self, gpu_hour: float, core_hour: float) -> float:
        """Price of an hour of its GPUs and of the processors that compile."""
        return self.gpus * gpu_hour + self.compile_cores * core_hour


def measured_costs() -> Costs:
    """The costs of the measured evaluations."""
    result = json.loads((RESULTS / "command_times.json").read_text(encoding="utf-8"))
    runs = measured()
    check_s = statistics.median(sum(run.get(stage, 0.0) for stage in CHECK_STAGES) for run in runs)
    rest_s = statistics.median(run["time"] + run["profile"] for run in runs)
    return Costs(result["compile"]["processor_s"], check_s, check_s + rest_s, network_bytes())


def network_bytes() -> float:
    """The bytes of one evaluation: every message is taken to go from one node to another.

    request to the pool, a compile node, a shared gang and, if it is right, an exclusive one;
    artifact to each gang; record of each step to the pool, the last one to the client as well
    """
    sizes = json.loads((RESULTS / "ray_bytes.json").read_text(encoding="utf-8"))["median"]
    requests = (3 + PASSING_SHARE) * sizes["request_bytes"]
    artifacts = (1 + PASSING_SHARE) * sizes["artifact_bytes"]
    last_record = PASSING_SHARE * sizes["record_bytes"] + (1 - PASSING_SHARE) * sizes["check_record_bytes"]
    records = 2 * sizes["check_record_bytes"] + PASSING_SHARE * sizes["record_bytes"] + last_record
    return float(requests + artifacts + records)


def most_per_s_of_a_pool() -> float | None:
    """Evaluations a second that keep the pool's event loop busy; None where it was not measured."""
    path = RESULTS / "ray_scale.json"
    if not path.exists():
        return None
    return 1e3 / float(json.loads(path.read_text(encoding="utf-8"))["processor_ms_per_evaluation"]["pool"])


def size(costs: Costs, gpus: int, world_size: int = WORLD_SIZE) -> Size:
    """The size of a cluster in balance: no kind of gang waits for the other.

        shared / exclusive = check_s / checks_per_gang / (passing_share * exclusive_s)

    Args:
        costs: of one evaluation.
        gpus: of the cluster.
        world_size: ranks of an evaluation.
    """
    gangs = gpus // world_size
    of_exclusive, of_shared = PASSING_SHARE * costs.exclusive_s, costs.check_s / CHECKS_PER_GANG
    shared = 0 if gangs < 2 else max(1, round(gangs * of_shared / (of_shared + of_exclusive)))
    exclusive = gangs - shared
    # A single gang checks as well, one at a time.
    per_s = UTILISATION * (exclusive / of_exclusive if shared else gangs / (of_exclusive + costs.check_s))
    if shared:
        per_s = min(per_s, UTILISATION * shared / of_shared)
    return Size(gpus, exclusive, shared, per_s, math.ceil(per_s * costs.compile_s), per_s * costs.network_bytes)


def table(gpu_hour: float | None = None, core_hour: float | None = None) -> str:
    """The rows of docs/scaling.md; with prices, the cost of an hour and of 1,000 evaluations."""
    priced = gpu_hour is not None and core_hour is not None
    heads = ["GPUs", "exclusive gangs", "shared gangs", "evaluations a second", "a GPU hour", "cores that compile"]
    heads += ["network (MB/s)", *(["cost an hour", "of 1,000 evaluations"] if priced else [])]
    rows = [heads, ["---"] * len(heads)]
    costs = measured_costs()
    for gpus in GPUS:
        of = size(costs, gpus)
        cells = [str(gpus), str(of.exclusive), str(of.shared), f"{of.per_s:.1f}", f"{3600 * of.per_s / gpus:.0f}"]
        cells += [str(of.compile_cores), f"{of.network_bytes_per_s / 1e6:.1f}"]
        if gpu_hour is not None and core_hour is not None:
            an_hour = of.cost_per_h(gpu_hour, core_hour)
            cells += [f"{an_hour:.2f}", f"{an_hour / (3.6 * of.per_s):.2f}"]
        rows.append(cells)
    return "\n".join("|" + "|".join(row) + "|" if row[0] == "---" else "| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Prints the table."""
    parser = make_parser("ray_sizing", __doc__)
    parser.add_argument("--gpu-hour", type=float, help="price of a GPU hour")
    parser.add_argument("--core-hour", type=float, help="price of a processor hour")
    args = parser.parse_args()
    if (args.gpu_hour is None) != (args.core_hour is None):
        parser.error("give both prices, --gpu-hour and --core-hour, or neither")
    costs = measured_costs()
    print(f"compile {costs.compile_s:.2f} s, check {costs.check_s:.2f} s, exclusive {costs.exclusive_s:.2f} s")
    print(f"network {costs.network_bytes / 1e3:.0f} kB")
    print(table(args.gpu_hour, args.core_hour))
    if (most := most_per_s_of_a_pool()) is not None:
        print(f"one pool hands out at most {most:.0f} evaluations a second")


if __name__ == "__main__":
    main()
