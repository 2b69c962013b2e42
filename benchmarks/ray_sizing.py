"""How many gangs, processors and bytes a cluster needs: the arithmetic of docs/scaling.md, from measured durations.

    python -m benchmarks.ray_sizing

Prints the table of the page. Durations are medians of the evaluations in results/command_times.json (AllReduce, `tiny`,
2 ranks, CPU device); those of other kernels and machines are in the `durations_s` of any record of feedback.
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
    """Of one evaluation.

    Attributes:
        compile_s: processor time of its compile in seconds.
        check_s: time on a shared gang.
        exclusive_s: time on an exclusive gang, where it is right.
    """

    compile_s: float
    check_s: float
    exclusive_s: float


@dataclass(frozen=True)
class Size:
    """Of a cluster whose GPUs are all busy.

    Attributes:
        gpus: of it.
        exclusive, shared: gangs.
        per_s: evaluations a second.
        compile_cores: processors that compile.
    """

    gpus: int
    exclusive: int
    shared: int
    per_s: float
    compile_cores: int


def measured_costs() -> Costs:
    """Of the measured evaluations."""
    result = json.loads((RESULTS / "command_times.json").read_text(encoding="utf-8"))
    runs = measured()
    check_s = statistics.median(sum(run.get(stage, 0.0) for stage in CHECK_STAGES) for run in runs)
    rest_s = statistics.median(run["time"] + run["profile"] for run in runs)
    return Costs(result["compile"]["processor_s"], check_s, check_s + rest_s)


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
    return Size(gpus, exclusive, shared, per_s, math.ceil(per_s * costs.compile_s))


def table() -> str:
    """The rows of docs/scaling.md."""
    rows = [
        "| GPUs | exclusive gangs | shared gangs | evaluations a second | cores that compile |",
        "|---|---|---|---|---|",
    ]
    for gpus in GPUS:
        of = size(measured_costs(), gpus)
        rows.append(f"| {gpus} | {of.exclusive} | {of.shared} | {of.per_s:.1f} | {of.compile_cores} |")
    return "\n".join(rows)


def main() -> None:
    """Prints the table."""
    make_parser("ray_sizing", __doc__).parse_args()
    costs = measured_costs()
    print(f"compile {costs.compile_s:.2f} s, check {costs.check_s:.2f} s, exclusive {costs.exclusive_s:.2f} s")
    print(table())


if __name__ == "__main__":
    main()
