"""How often expert kernels for GPUs are refused, of many evaluations with other seeds.

python -m benchmarks.expert_checks [PROBLEM ...] [--world-size N] [--until check|time] [--evaluations N]

They are compiled side by side first. Where ranks are more than GPUs they share them, and are checked alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common import make_parser, save
from benchmarks.outcomes import Kernel, Row, compile_all, evaluated, measure, refused
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem


def experts(names: Sequence[str]) -> list[Kernel]:
    """The expert kernels of some problems; of all where no name is given."""
    problems = [find_problem(name) for name in names] or catalogue()
    sources = [(problem.name, expert_source(problem, "cu")) for problem in problems]
    return [Kernel("expert", name, source) for name, source in sources if source is not None]


def saved(row: Row) -> dict[str, object]:
    """The row as JSON."""
    return {"problem": row.kernel.problem} | {
        key: value for key, value in row.saved().items() if key not in ("kernel", "lacks")
    }


def main() -> None:
    """Evaluates the experts and keeps the result."""
    parser = make_parser("expert_checks", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: all with an expert)")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--until", choices=("check", "time"), default="check", help="default: check")
    parser.add_argument("--evaluations", type=int, default=20, metavar="N", help="of each expert (default: 20)")
    parser.add_argument("--size", nargs="+", default=["tiny"], metavar="NAME", help="default: tiny")
    parser.add_argument("--race", choices=("auto", "on", "off"), default="auto", help="the detector of races")
    parser.add_argument("--callers", type=int, default=1, metavar="N", help="evaluations at once (default: 1)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no evaluation begins after this")
    given = parser.parse_args()
    settings = {
        "device": "cuda",
        "race_check": given.race,
        "world_size": given.world_size,
        "ranks_per_gpu": -(-given.world_size // max(1, len(gpus.names()))),
        "until": given.until,
    }
    chosen = experts(given.problems)
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, chosen, **settings)
        rows = [Row(kernel, size) for kernel in chosen for size in given.size]
        measure(evaluator, rows, given.evaluations, given.callers, given.limit_s, **settings)
    total = {"evaluated": evaluated(rows), "refused": refused(rows)}
    name = f"expert_checks_{given.world_size}_ranks" + ("_timed" if given.until == "time" else "")
    save(name, {**settings, "gpus": gpus.names(), **total, "rows": [saved(row) for row in rows]})


if __name__ == "__main__":
    main()
