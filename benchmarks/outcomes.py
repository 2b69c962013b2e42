"""Outcomes of kernels that are evaluated many times, each time with another seed."""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from benchmarks.common import make_parser
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem


@dataclass(frozen=True)
class Kernel:
    """One source.

    Attributes:
        name: Name of the kernel.
        problem: Name of the problem that it solves.
        source: Text of the source.
        lacks: Name of the synchronisation that it lacks; None for a right kernel.
    """

    name: str
    problem: str
    source: str
    lacks: str | None = None


@dataclass
class Row:
    """A kernel at a size.

    Attributes:
        kernel: The kernel.
        size: Name of the size.
        outcomes: Number of evaluations that passed or failed in each way.
        seconds: Time of each evaluation in seconds.
        unfit: Why this machine cannot evaluate it; empty where it can.
    """

    kernel: Kernel
    size: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    unfit: str = ""

    def saved(self) -> dict[str, Any]:
        """The row as JSON."""
        always = {
            "kernel": self.kernel.name,
            "size": self.size,
            "outcomes": dict(self.outcomes),
            "evaluation_s": round(statistics.median(self.seconds), 3) if self.seconds else None,
        }
        at_times = {"lacks": self.kernel.lacks, "unfit": self.unfit}
        return always | {name: text for name, text in at_times.items() if text}


def make_outcomes_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of such a benchmark, as `make_parser`, with the options that `count_outcomes` takes."""
    parser = make_parser(name, about)
    parser.add_argument("--evaluations", type=int, default=20, metavar="N", help="of each kernel (default: 20)")
    parser.add_argument("--size", nargs="+", default=["tiny"], metavar="NAME", help="default: tiny")
    parser.add_argument("--race", choices=("auto", "on", "off"), default="auto", help="the detector of races")
    parser.add_argument("--callers", type=int, default=1, metavar="N", help="evaluations at once (default: 1)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no evaluation begins after this")
    return parser


def ranks_per_gpu(world_size: int) -> int:
    """The number of ranks that have to share a GPU of this machine."""
    return -(-world_size // max(1, len(gpus.names())))


def count_outcomes(chosen: Sequence[Kernel], given: argparse.Namespace, settings: Mapping[str, object]) -> list[Row]:
    """Compiles kernels side by side, and counts what becomes of each at each size.

    Args:
        chosen: The kernels.
        given: Command line of `make_outcomes_parser`.
        settings: Fields of the evaluations' configuration.
    """
    rows = [Row(kernel, size) for kernel in chosen for size in given.size]
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, chosen, **settings)
        measure(evaluator, rows, given.evaluations, given.callers, given.limit_s, **settings)
    return rows


def evaluated(rows: Iterable[Row]) -> int:
    """Number of evaluations."""
    return sum(row.outcomes.total() for row in rows)


def refused(rows: Iterable[Row]) -> int:
    """Number of evaluations that did not pass."""
    return sum(row.outcomes.total() - row.outcomes["passed"] for row in rows)


def measure(
    evaluator: Evaluator, rows: Sequence[Row], evaluations: int, callers: int, limit_s: float, **settings: object
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
        if monotonic() > ends or row.unfit:
            return
        config = EvalConfig.model_validate({"size": row.size, "seed": seed} | settings)
        began = monotonic()
        try:
            feedback = evaluator.evaluate(find_problem(row.kernel.problem), row.kernel.source, config)
        except ConfigError as error:  # a size that does not fit, say: the others have their figures
            row.unfit = str(error)
            return
        row.seconds.append(monotonic() - began)
        row.outcomes["passed" if feedback.passed else str(feedback.failure)] += 1

    with ThreadPoolExecutor(callers) as pool:
        wanted = [pool.submit(evaluate, row, seed) for seed in range(evaluations) for row in rows]
        for one in wanted:
            one.result()


def compile_all(evaluator: Evaluator, chosen: Sequence[Kernel], **settings: object) -> None:
    """Compiles every source, on all processors."""
    config = EvalConfig.model_validate(settings | {"until": "compile"})
    with ThreadPoolExecutor(max(1, processors() - 1)) as threads:
        list(threads.map(lambda each: evaluator.evaluate(find_problem(each.problem), each.source, config), chosen))
