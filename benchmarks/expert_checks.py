"""How often expert kernels for GPUs are refused, of many evaluations with other seeds.

python -m benchmarks.expert_checks [PROBLEM ...] [--world-size N] [--until check|time] [--evaluations N]

They are compiled side by side first. Where ranks are more than GPUs they share them, and are checked alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common import save
from benchmarks.outcomes import Kernel, count_outcomes, evaluated, make_outcomes_parser, ranks_per_gpu, refused
from pkb_gym.engine.hardware import gpus
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem


def experts(names: Sequence[str]) -> list[Kernel]:
    """The expert kernels of some problems, by their names; of all where no name is given."""
    problems = [find_problem(name) for name in names] or catalogue()
    sources = [(problem.name, expert_source(problem, "cu")) for problem in problems]
    return [Kernel(name, name, source) for name, source in sources if source is not None]


def main() -> None:
    """Evaluates the experts and keeps the result."""
    parser = make_outcomes_parser("expert_checks", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: all with an expert)")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--until", choices=("check", "time"), default="check", help="default: check")
    given = parser.parse_args()
    settings = {
        "device": "cuda",
        "race_check": given.race,
        "world_size": given.world_size,
        "ranks_per_gpu": ranks_per_gpu(given.world_size),
        "until": given.until,
    }
    rows = count_outcomes(experts(given.problems), given, settings)
    total = {"evaluated": evaluated(rows), "refused": refused(rows)}
    name = f"expert_checks_{given.world_size}_ranks" + ("_timed" if given.until == "time" else "")
    save(name, {**settings, "gpus": gpus.names(), **total, "rows": [row.saved() for row in rows]})


if __name__ == "__main__":
    main()
