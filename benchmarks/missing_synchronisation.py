"""How often kernels that lack one synchronisation are refused, and their right twins pass.

python -m benchmarks.missing_synchronisation [KERNEL ...] [--device cpu|cuda|emulated] [--evaluations N]

Kernels are those of tests/candidates/twins, for GPUs of tests/candidates/cuda/twins; `pkb_gym.authoring.twins` says how
the wrong ones are made. They are compiled side by side first. On a machine with one GPU the ranks share it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
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
    evaluator: LocalEvaluator, kernel: Kernel, size: str, evaluations: int, **settings: object
) -> dict[str, Any]:
    """One row: the number of each outcome, and the seconds of an evaluation whose source has been compiled before."""
    outcomes: Counter[str] = Counter()
    seconds = 0.0
    for seed in range(evaluations):
        requested = {"until": "check", "size": size, "seed": seed, "timeout_s": 60.0}
        config = EvalConfig.model_validate(requested | settings)
        began = perf_counter()
        feedback = evaluator.evaluate(find_problem(kernel.problem), kernel.source, config)
        seconds += perf_counter() - began if seed else 0.0
        outcomes["passed" if feedback.passed else str(feedback.failure)] += 1
    return {
        "kernel": kernel.name,
        "lacks": kernel.lacks,
        "size": size,
        "outcomes": dict(outcomes),
        "evaluation_s": round(seconds / max(1, evaluations - 1), 3),
    }


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
    given = parser.parse_args()
    settings: dict[str, object] = {"device": given.device, "race_check": given.race, "world_size": WORLD_SIZE}
    if given.device == "cuda":
        settings["ranks_per_gpu"] = -(-WORLD_SIZE // max(1, len(gpus.names())))
    chosen = [
        kernel for kernel in kernels(given.device) if not given.kernels or Path(kernel.name).stem in given.kernels
    ]
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, chosen, **settings)
        rows = [
            measure(evaluator, kernel, size, given.evaluations, **settings) for kernel in chosen for size in given.size
        ]
    wrong = [row for row in rows if row["lacks"] is not None]
    total = {
        "wrong_refused": sum(given.evaluations - row["outcomes"].get("passed", 0) for row in wrong),
        "wrong_evaluated": given.evaluations * len(wrong),
        "right_refused": sum(
            given.evaluations - row["outcomes"].get("passed", 0) for row in rows if row["lacks"] is None
        ),
        "right_evaluated": given.evaluations * (len(rows) - len(wrong)),
    }
    save(f"missing_synchronisation_{given.device}", {**settings, **total, "rows": rows})


if __name__ == "__main__":
    main()
