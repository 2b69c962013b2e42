"""Evaluations a minute until time, and where their time goes by stage.

python -m benchmarks.throughput [--device cpu|cuda] [--world-size N] [--size SIZE] [--seconds S] [--callers N]
    [--problems NAME ...] [--only PART ...] [--out FOLDER]

Parts:
- one_by_one: sources that were compiled before, one after the other, with nothing beside.
- compiled: a stream of the same sources from several callers.
- fresh: a stream of native sources that were never compiled before.

The sources are the references of the problems and their native experts, in turns. Each part has the median seconds of
every stage; a wait for other evaluations counts as a stage.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS
from pkb_gym.problems.catalogue import expert_source, find_problem

SUFFIX = {"cpu": "cpp", "cuda": "cu"}
PROBLEMS = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "AllGatherGemm", "GemmAllReduce")
PARTS = ("one_by_one", "compiled", "fresh")


@dataclass(frozen=True)
class Candidate:
    """A source and its problem.

    Attributes:
        problem: Problem that the source solves.
        text: Text of the source.
    """

    problem: Problem
    text: str


@dataclass(frozen=True)
class Finished:
    """An evaluation of a stream.

    Attributes:
        seconds: Time of the evaluation, in seconds.
        feedback: Feedback of the evaluation.
    """

    seconds: float
    feedback: Feedback


def native(names: Sequence[str], device: str) -> list[Candidate]:
    """The experts of these problems, of those that have one for the device."""
    problems = [find_problem(name) for name in names]
    found = [(problem, expert_source(problem, SUFFIX[device])) for problem in problems]
    return [Candidate(problem, text) for problem, text in found if text is not None]


def mixed(names: Sequence[str], device: str) -> list[Candidate]:
    """References and experts of these problems."""
    problems = [find_problem(name) for name in names]
    references = [
        Candidate(problem, Path(problem.declared_in).with_name("reference.py").read_text(encoding="utf-8"))
        for problem in problems
    ]
    return [*references, *native(names, device)]


def fresh(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The candidates over and over, each time as a text that was never seen."""
    for number in itertools.count():
        candidate = candidates[number % len(candidates)]
        yield Candidate(candidate.problem, f"{candidate.text}\n// {time.time_ns()} {number}\n")


def compile_all(evaluator: Evaluator, candidates: Sequence[Candidate], config: EvalConfig, callers: int) -> None:
    """Compiles the candidates beside each other."""
    until_compile = config.model_copy(update={"until": "compile"})
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda one: evaluator.evaluate(one.problem, one.text, until_compile), candidates))


def one_by_one(evaluator: Evaluator, candidates: Sequence[Candidate], config: EvalConfig) -> dict[str, Any]:
    """Evaluates each candidate once, with nothing beside."""
    finished = [_timed(evaluator, candidate, config) for candidate in candidates]
    return {"median_s": round(statistics.median(one.seconds for one in finished), 3)} | _outcome(finished)


def stream(
    evaluator: Evaluator, candidates: Iterator[Candidate], config: EvalConfig, callers: int, seconds: float
) -> dict[str, Any]:
    """Evaluates candidates from several callers for a while.

    Args:
        evaluator: Evaluator of the candidates.
        candidates: Candidates, without end.
        config: Configuration of the evaluations.
        callers: Number of callers, each of which waits for one evaluation at a time.
        seconds: Time in seconds after which no evaluation begins.
    """
    lock, finished, ends = threading.Lock(), list[Finished](), list[float]()
    began = time.monotonic()

    def call() -> None:
        while time.monotonic() - began < seconds:
            with lock:
                candidate = next(candidates)
            one = _timed(evaluator, candidate, config)
            with lock:
                finished.append(one)
                ends.append(time.monotonic() - began)

    with ThreadPoolExecutor(callers) as pool:
        for caller in [pool.submit(call) for _ in range(callers)]:
            caller.result()
    first, last = min(ends), max(ends)
    flowing = {"per_minute_once_flowing": round(60 * (len(ends) - 1) / (last - first), 1)} if last > first else {}
    return {"seconds": round(last, 1), "per_minute": round(60 * len(ends) / last, 1)} | flowing | _outcome(finished)


def _timed(evaluator: Evaluator, candidate: Candidate, config: EvalConfig) -> Finished:
    began = time.monotonic()
    feedback = evaluator.evaluate(candidate.problem, candidate.text, config)
    return Finished(time.monotonic() - began, feedback)


def _outcome(finished: Sequence[Finished]) -> dict[str, Any]:
    """Counts of verdicts, and the median seconds of each stage of those that were timed, by kind of source."""
    verdicts = Counter(one.feedback.failure.value if one.feedback.failure else "passed" for one in finished)
    rows = []
    for language in sorted({one.feedback.config.language for one in finished}):
        timed = [one.feedback for one in finished if one.feedback.timing and one.feedback.config.language == language]
        if timed:
            rows.append({"language": language, "timed": len(timed), **_stages(timed)})
    return {"evaluations": len(finished), "verdicts": dict(verdicts), "stages_s": rows}


def _stages(timed: Sequence[Feedback]) -> dict[str, float]:
    names = {name: None for feedback in timed for name in feedback.durations_s}  # in their order
    return {
        name: round(statistics.median(feedback.durations_s.get(name, 0.0) for feedback in timed), 3) for name in names
    }


def main() -> None:
    """Measures and saves."""
    options = _options()
    config = EvalConfig(device=options.device, world_size=options.world_size, size=options.size, until=Stage.TIME.value)
    candidates, natives = mixed(options.problems, options.device), native(options.problems, options.device)
    result: dict[str, Any] = {
        "gpus": list(gpus.names()),
        "device": options.device,
        "world_size": options.world_size,
        "size": options.size,
        "callers": options.callers,
    }
    with LocalEvaluator() as evaluator:
        compile_all(evaluator, candidates, config, options.callers)
        for candidate in (natives[0], candidates[0]):  # the first evaluations measure what blocks cost, too
            for _ in range(MEASUREMENTS):
                evaluator.evaluate(candidate.problem, candidate.text, config)
        if "one_by_one" in options.only:
            result["one_by_one"] = one_by_one(evaluator, candidates, config)
        if "compiled" in options.only:
            compiled = itertools.cycle(candidates)
            result["compiled"] = stream(evaluator, compiled, config, options.callers, options.seconds)
        if "fresh" in options.only:
            result["fresh"] = stream(evaluator, fresh(natives), config, options.callers, options.seconds)
    save(f"throughput_{options.device}_{options.world_size}_ranks", result, options.out)


def _options() -> argparse.Namespace:
    parser = make_parser("throughput", __doc__)
    parser.add_argument("--device", choices=tuple(SUFFIX), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--size", default="published", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40, metavar="S", help="of a stream (default: %(default)s)")
    parser.add_argument("--callers", type=int, default=16, metavar="N", help="of a stream (default: %(default)s)")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, metavar="NAME", help="(default: seven with experts)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="(default: results)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
