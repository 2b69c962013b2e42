"""Latency and repeatability of the evaluator itself on GPUs; evaluations a minute are those of `benchmarks.throughput`.

python -m benchmarks.gpu_evaluator [--world-size 4] [--out FOLDER] [--device cpu] [--only PART ...]
    [--problems NAME ...] [--size SIZE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header
from pkb_gym.engine.evaluators.gang_pool import STANDBY_GANGS
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.problems.catalogue import expert_source, find_problem

LATENCY_RUNS = {"first": ("time", MEASUREMENTS), "check": ("check", 5), "time": ("time", 5), "profile": ("profile", 5)}
"""Last stage and number of evaluations; the first ones measure what blocks cost, too."""

REPEATS, REPEATS_WITHOUT_STANDBY = 20, 6
REPEATED, REPEATED_SIZE = ("AllReduce",), "large"
"""Problem and size whose calls take more than 50 microseconds on GPUs."""

PARTS = (
    "latency_with_standby",
    "repeatability_with_standby",
    "latency_without_standby",
    "repeatability_without_standby",
)


class Benchmark:
    """Shared parts of the measurements."""

    def __init__(self, device: str, world_size: int, size: str, repeated: Sequence[str] = REPEATED) -> None:
        self.device, self.world_size, self.size, self.repeated = device, world_size, size, repeated
        self.suffix = "cu" if device == "cuda" else "cpp"

    def config(self, until: str, size: str | None = None) -> EvalConfig:
        """The configuration of one evaluation: defaults but for device, world size, size and last stage."""
        return EvalConfig.model_validate(
            {"device": self.device, "world_size": self.world_size, "size": size or self.size, "until": until}
        )

    def expert(self, name: str) -> str:
        """Source of the expert kernel."""
        source = expert_source(find_problem(name), self.suffix)
        assert source is not None
        return source

    def latency(self, evaluator: LocalEvaluator) -> dict[str, Any]:
        """Seconds of one evaluation whose compile is cached, to each last stage, by an evaluator that is in use."""
        found: dict[str, Any] = {}
        for part, (until, runs) in LATENCY_RUNS.items():
            times, durations = [], {}
            for _ in range(runs):
                began = time.monotonic()
                feedback = evaluator.evaluate(find_problem("AllReduce"), self.expert("AllReduce"), self.config(until))
                times.append(time.monotonic() - began)
                durations = feedback.durations_s
            found[part] = {"median_s": round(statistics.median(times), 2), "worst_s": round(max(times), 2)}
            found[part]["last_durations_s"] = {stage: round(seconds, 3) for stage, seconds in durations.items()}
        return found

    def repeatability(
        self, evaluator: LocalEvaluator, repeats: int, requested: str | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """The same candidates over and over in turn, the baseline as a candidate among them; what is known so far.

        Args:
            evaluator: Evaluator that judges them.
            repeats: Number of evaluations of each, at least 2.
            requested: Size of the problems; None for the default.
        """
        size = requested or (REPEATED_SIZE if self.device == "cuda" else self.size)
        candidates: list[tuple[str, str, str, str]] = []
        for name in self.repeated:
            candidates.append((name, size, "expert", self.expert(name)))
            reference = Path(find_problem(name).declared_in).with_name("reference.py").read_text(encoding="utf-8")
            candidates.append((name, size, "baseline", reference))
        seen: dict[tuple[str, str, str], list[Feedback]] = {}
        for _ in range(repeats):
            for name, size, kind, source in candidates:
                feedback = evaluator.evaluate(find_problem(name), source, self.config("time", size))
                seen.setdefault((name, size, kind), []).append(feedback)
            yield [_spread(*key, feedbacks) for key, feedbacks in seen.items()]


def _spread(name: str, size: str, kind: str, feedbacks: Sequence[Feedback]) -> dict[str, Any]:
    timings = [feedback.timing for feedback in feedbacks if feedback.timing is not None]
    row: dict[str, Any] = {"problem": name, "size": size, "candidate": kind, "timed": len(timings)}
    if len(timings) < 2:
        return row | {"message": feedbacks[0].message[:300]}
    speedups = [timing.speedup for timing in timings]
    return row | {
        "baseline_us": round(statistics.median(timing.baseline_us for timing in timings), 1),
        "candidate_us": round(statistics.median(timing.candidate_us for timing in timings), 1),
        "speedup": round(statistics.median(speedups), 3),
        "coefficient_of_variation": round(statistics.stdev(speedups) / statistics.mean(speedups), 4),
        "intervals_with_one": sum(timing.speedup_low <= 1 <= timing.speedup_high for timing in timings),
        "findings": sorted({finding.code for feedback in feedbacks for finding in feedback.integrity}),
        "speedups": [round(speedup, 3) for speedup in speedups],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_evaluator", description=main.__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--problems", nargs="+", default=REPEATED, metavar="NAME", help="of the repeated candidates")
    parser.add_argument("--size", help="of the repeated candidates (default: one whose calls are long)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    ranks = "" if args.world_size == 4 else f"_{args.world_size}_ranks"
    benchmark = Benchmark(args.device, args.world_size, "published" if args.device == "cuda" else "tiny", args.problems)
    result: dict[str, Any] = header() | {"gpus": list(gpus.names()), "world_size": args.world_size}

    def keep(name: str, value: object) -> None:
        result[name] = value
        print(name, json.dumps(value), file=sys.stderr, flush=True)
        write_atomically(args.out / f"gpu_evaluator{ranks}.json", row_json(result))

    for name, standby_gangs, repeats in (
        ("with_standby", STANDBY_GANGS, REPEATS),
        ("without_standby", 0, REPEATS_WITHOUT_STANDBY),
    ):
        if not any(name in part for part in args.only):
            continue
        with LocalEvaluator(standby_gangs=standby_gangs) as evaluator:
            evaluator.evaluate(find_problem("AllReduce"), benchmark.expert("AllReduce"), benchmark.config("check"))
            if f"latency_{name}" in args.only:
                keep(f"latency_{name}", benchmark.latency(evaluator))
            if f"repeatability_{name}" in args.only:
                for rows in benchmark.repeatability(evaluator, repeats, args.size):
                    keep(f"repeatability_{name}", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
