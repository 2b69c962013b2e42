"""The cost of arrival and departure per call, and the baseline's time without them beside that of a plain loop.

Blocks of the baseline take turns: plain ones, whose inputs are in place from the start, and ones whose calls have
handovers between them, from whose time the measured overhead is subtracted.

python -m benchmarks.handover [--device cpu|cuda] [--world-size N] [--size SIZE] [PROBLEM ...]
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages import timing_statistics as statistics_of_blocks
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.null_blocks import measure_overhead
from pkb_gym.engine.stages.time import baseline_alone_us
from pkb_gym.problems.catalogue import find_problem, reference_source

PAIRS = 30
PROBLEMS = ("AllReduce", "AllGatherGemm", "VocabParallelLogProb", "MoETokenPreprocess", "HyenaCP")


def measure(pool: GangPool, problem: Problem, config: EvalConfig) -> dict[str, Any]:
    """One problem: the cost of a handover on both sides, and the baseline's time of a call both ways."""
    source, resolved = execution_environment.resolve_source(config, problem, reference_source(problem))
    environment = execution_environment.describe(resolved.device, resolved.dialect)
    feedback = FeedbackBuilder(problem, source, resolved, environment)
    new_gang = functools.partial(pool.candidate_gang, resolved, source.text)
    reference = pool.reference(resolved.device, resolved.world_size)
    handovers, artifact = pool.handovers(resolved.device), Artifact(ok=True, log="", duration_s=0.0)
    with CandidateRun(feedback, artifact, reference, new_gang, handovers, bytes(16)) as run:
        alone_us = baseline_alone_us(run)
        overhead = measure_overhead(reference, run.gang)
        calls = statistics_of_blocks.calls_per_block(alone_us, alone_us, run.layout.most_calls)
        plain_us: list[float] = []
        served_us: list[float] = []
        for _ in range(PAIRS):
            run.prepare(calls, timed=True)
            plain_ns = reference.run(calls, resolved.dialect)
            plain_us.append(statistics_of_blocks.per_call_us(plain_ns, calls, overhead.gate_us))
            run.prepare(calls, timed=True)
            served_ns = reference.run(calls, resolved.dialect, handovers=True, pad_ns=overhead.pad_ns)
            served_us.append(statistics_of_blocks.per_call_us(served_ns, calls, overhead.baseline_us(calls)))
    plain, served = (statistics_of_blocks.typical_us(samples) for samples in (plain_us, served_us))
    return {
        "calls_per_block": calls,
        "baseline_handover_us": round(overhead.baseline_handover_us, 2),
        "candidate_handover_us": round(overhead.candidate_handover_us, 2),
        "plain_us": round(plain, 2),
        "with_handovers_us": round(served, 2),
        "ratio": round(served / plain, 4),
        "plain_blocks_scatter": round(statistics.stdev(plain_us) / statistics.mean(plain_us), 4),
    }


def main() -> None:
    """Measures and saves."""
    parser = make_parser("handover", __doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--name", default=None, help="of the result")
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    args = parser.parse_args()
    pool = GangPool(DeviceArbiter(), CompileCache.in_folder(None), 0)
    result: dict[str, Any] = {"device": args.device, "world_size": args.world_size, "size": args.size, "pairs": PAIRS}
    config = EvalConfig(device=args.device, world_size=args.world_size, size=args.size, until="time")
    try:
        for name in args.problems:
            problem = find_problem(name)
            result[problem.name] = measure(pool, problem, config)
            print(problem.name, result[problem.name])
    finally:
        pool.stop()
        pool.close()
    save(args.name or f"handover_{args.device}_{args.world_size}_ranks", result)


if __name__ == "__main__":
    main()
