"""How often kernels that lack one synchronisation are refused, and their right twins pass.

python -m benchmarks.missing_synchronisation [KERNEL ...] [--device cpu|cuda|emulated] [--evaluations N]

Kernels are those of tests/candidates/twins, for GPUs of tests/candidates/cuda/twins; `pkb_gym.authoring.twins` says how
the wrong ones are made. They are compiled side by side first. On a machine with one GPU the ranks share it.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.authoring.twins import kernel_text, synchronisations, without
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem

CANDIDATES = Path(__file__).resolve().parents[1] / "tests" / "candidates"
WORLD_SIZE = 2


@dataclass(frozen=True)
class Kernel:
    """One source.

    Attributes:
        name: Name of the file.
        problem: Name of the problem that it solves.
        lacks: Name of the synchronisation that it lacks; None for a right kernel.
        source: Text of the source.
    """

    name: str
    problem: str
    lacks: str | None
    source: str


@dataclass
class Row:
    """A kernel at a size.

    Attributes:
        kernel: The kernel.
        size: Name of the size.
        outcomes: Number of evaluations that passed or failed in each way.
        seconds: Time of each evaluation in seconds.
    """

    kernel: Kernel
    size: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def saved(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "kernel": self.kernel.name,
            "lacks": self.kernel.lacks,
            "size": self.size,
            "outcomes": dict(self.outcomes),
            "evaluation_s": round(statistics.median(self.seconds), 3) if self.seconds else None,
        }


def refused(rows: Iterable[Row]) -> int:
    """Number of evaluations that did not pass."""
    return sum(row.outcomes.total() - row.outcomes["passed"] for row in rows)


def kernels(device: str) -> Iterator[Kernel]:
    """Every right kernel of a device, each followed by the wrong ones that are made from it."""
    folder = CANDIDATES / ("twins" if device == "cpu" else "cuda/twins")
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.cu")]):
        source = kernel_text(path)
        found = re.search(r"^// problem: (\S+)$", source, re.MULTILINE)
        problem = found[1] if found else "AllReduce"
        yield Kernel(path.name, problem, None, source)
        for lacks in synchronisations(source):
            yield Kernel(path.name, problem, lacks, without(source, lacks))


def measure(
    evaluator: LocalEvaluator, rows: Sequence[Row], evaluations: int, callers: int, limit_s: float, **settings: object
) -> None:
    """Counts the outcomes of each row, whose sources have been compiled before.

    Every row is evaluated once before one is evaluated again, so that a limit of time leaves all of them with as many.

    Args:
        evaluator: Evaluator of the kernels.
        rows: Rows whose outcomes are counted.
        evaluations: Number of evaluations of each row, each with its own seed.
        callers: Number of evaluations at once.
        limit_s: Time in seconds after which no evaluation begins.
        settings: Fields of the evaluations' configuration.
    """
    ends = monotonic() + limit_s

    def evaluate(row: Row, seed: int) -> None:
        if monotonic() > ends:
            return
        requested = {"until": "check", "size": row.size, "seed": seed, "timeout_s": 5.0}
        config = EvalConfig.model_validate(requested | settings)
        began = monotonic()
        feedback = evaluator.evaluate(find_problem(row.kernel.problem), row.kernel.source, config)
        row.seconds.append(monotonic() - began)
        row.outcomes["passed" if feedback.passed else str(feedback.failure)] += 1

    with ThreadPoolExecutor(callers) as pool:
        wanted = [pool.submit(evaluate, row, seed) for seed in range(evaluations) for row in rows]
        for one in wanted:
            one.result()


def compile_all(evaluator: LocalEvaluator, chosen: Sequence[Kernel], **settings: object) -> None:
    """Compiles every source, on all processors."""
    config = EvalConfig.model_validate({"until": "compile"} | settings)
    with ThreadPoolExecutor(max(1, processors() - 1)) as threads:
        list(threads.map(lambda each: evaluator.evaluate(find_problem(each.problem), each.source, config), chosen))


def main() -> None:
    """Evaluates all kernels of a device and keeps the result."""
    parser = make_parser("missing_synchronisation", __doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names of files without suffix (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda", "emulated"), default="cpu")
    parser.add_argument("--evaluations", type=int, default=20, metavar="N", help="of each kernel (default: 20)")
    parser.add_argument("--size", nargs="+", default=["tiny"], metavar="NAME", help="default: tiny")
    parser.add_argument("--race", choices=("auto", "on", "off"), default="auto", help="the detector of races")
    parser.add_argument("--callers", type=int, default=1, metavar="N", help="evaluations at once (default: 1)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no evaluation begins after this")
    given = parser.parse_args()
    settings: dict[str, object] = {"device": given.device, "race_check": given.race, "world_size": WORLD_SIZE}
    if given.device == "cuda":
        settings["ranks_per_gpu"] = -(-WORLD_SIZE // max(1, len(gpus.names())))
    chosen = [
        kernel for kernel in kernels(given.device) if not given.kernels or Path(kernel.name).stem in given.kernels
    ]
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, chosen, **settings)
        rows = [Row(kernel, size) for kernel in chosen for size in given.size]
        measure(evaluator, rows, given.evaluations, given.callers, given.limit_s, **settings)
    wrong = [row for row in rows if row.kernel.lacks is not None]
    right = [row for row in rows if row.kernel.lacks is None]
    total = {
        "wrong_refused": refused(wrong),
        "wrong_evaluated": sum(row.outcomes.total() for row in wrong),
        "right_refused": refused(right),
        "right_evaluated": sum(row.outcomes.total() for row in right),
    }
    name = f"missing_synchronisation_{given.device}" + ("_without_detector" if given.race == "off" else "")
    save(name, {**settings, **total, "rows": [row.saved() for row in rows]})


if __name__ == "__main__":
    main()
