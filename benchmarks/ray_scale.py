"""The control plane at scale: real Ray, and gangs that sleep as long as measured evaluations took.

    python -m benchmarks.ray_scale [--budget-s S] [--out FOLDER]

128 gangs of 8 GPUs that exist in name alone, a process each; 20,000 evaluations, four seeds of each source. Durations
are drawn from results/command_times.json and multiplied by `--scale`: so many evaluations a second are what two
processors can hand out. Utilisation is the time that exclusive gangs slept over the time that they existed, from a
tenth to nine tenths of the answers.

A run takes up evaluations until the budget is spent, and saves. A further run of the same commit and load goes on
behind it, with a new cluster, until all are answered. On an idle machine.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, save, unfinished
from benchmarks.ray_cluster import local_cluster, wait_until
from benchmarks.ray_sleeper import Durations, durations_of, source_of
from benchmarks.ray_usage import ClusterUsage
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
SAMPLE_S = 15.0
START_S = 600.0
MARGIN = 0.1
"""Share of the answers at either end that utilisation leaves out."""


@dataclass(frozen=True)
class Load:
    """Work of a pool.

    Attributes:
        shared, exclusive: gangs.
        world_size: GPUs of each.
        compilers: at the same time.
        evaluations: in all.
        seeds: of each source, which is compiled once.
        waiting: submitted at the same time.
        scale: factor of the measured durations.
        failing_share: of evaluations, that fail their check and take no exclusive gang.
    """

    shared: int
    exclusive: int
    world_size: int
    compilers: int
    evaluations: int
    seeds: int
    waiting: int
    scale: float
    failing_share: float


@dataclass(frozen=True)
class Answer:
    """The moment of an answer, by `time.monotonic`, and the time until then."""

    at_s: float
    waited_s: float
    durations: Durations


@dataclass(frozen=True)
class Part:
    """Evaluations of one run.

    Attributes:
        first: number of the first evaluation.
        evaluations: that were answered.
        start_s: from the start of the pool until all gangs were ready.
        wall_s: from the first request to the last answer, gangs started before.
        utilisation: of the exclusive gangs, without either end of the run.
        waited_p50_s, waited_p95_s: from request to answer.
        queue_s: that steps of an evaluation waited for a compiler or a gang; mean.
        driver_processor_s: of this process, which submits.
        processor_s: of the cluster, by part.
        processes: of the cluster, by part.
        pool_mib: resident memory of the pool in the order of time, at most 20 samples.
        cluster_mib: of all processes of the cluster, shared pages once, likewise.
        finished, retries, infrastructure_faults, exclusive_steps: as the pool counted them.
    """

    first: int
    evaluations: int
    start_s: float
    wall_s: float
    utilisation: float
    waited_p50_s: float
    waited_p95_s: float
    queue_s: float
    driver_processor_s: float
    processor_s: dict[str, float]
    processes: dict[str, int]
    pool_mib: list[float]
    cluster_mib: list[float]
    finished: int
    retries: int
    infrastructure_faults: int
    exclusive_steps: int


def measure(
    load: Load, settings: str = "", device: Device = "cuda", first: int = 0, budget_s: float = float("inf")
) -> Part:
    """Runs a load on the cluster that this process is connected to.

    Args:
        load: of the pool.
        settings: further ones of the pool.
        device: that gangs reserve.
        first: number of the first evaluation; those before it were answered by an earlier run.
        budget_s: after which no further evaluation is begun.
    """
    address = _address(load, settings)
    config = EvalConfig(device=device, world_size=load.world_size, size="tiny", until="profile")
    with RayEvaluator(address, timeout_s=24 * 3600.0) as evaluator, ThreadPoolExecutor(load.waiting) as threads:
        start_s = _started(evaluator, load, config)
        before, driver_before = evaluator.status(), _processor_s()
        began = time.monotonic()

        numbers, lock = iter(range(first, load.evaluations)), threading.Lock()

        def next_number() -> int | None:
            with lock:
                return None if time.monotonic() - began > budget_s else next(numbers, None)

        def evaluate_on(_: int) -> list[Answer]:
            answers = []
            while (number := next_number()) is not None:
                drawn = (number // load.seeds, load.scale, load.failing_share)
                seeded = config.model_copy(update={"seed": number % load.seeds})
                submitted = time.monotonic()
                evaluator.evaluate(PROBLEM, source_of(*drawn), seeded)
                now = time.monotonic()
                answers.append(Answer(now, now - submitted, durations_of(*drawn)))
            return answers

        with ClusterUsage(SAMPLE_S) as usage:
            answers = [each for found in threads.map(evaluate_on, range(load.waiting)) for each in found]
        wall_s = time.monotonic() - began
        driver_s, status = _processor_s() - driver_before, evaluator.status()
    waited_s = sorted(answer.waited_s for answer in answers)
    return Part(
        first=first,
        evaluations=len(answers),
        start_s=start_s,
        wall_s=wall_s,
        utilisation=utilisation(answers, load.exclusive),
        waited_p50_s=statistics.median(waited_s),
        waited_p95_s=waited_s[int(0.95 * len(waited_s))],
        queue_s=(status.queue_s - before.queue_s) / len(answers),
        driver_processor_s=driver_s,
        processor_s=usage.processor_s(),
        processes=usage.processes(),
        pool_mib=_thinned(usage.pool_mib),
        cluster_mib=_thinned(usage.total_mib),
        finished=status.finished - before.finished,
        retries=status.retries - before.retries,
        infrastructure_faults=status.infrastructure_faults - before.infrastructure_faults,
        exclusive_steps=status.exclusive_steps - before.exclusive_steps,
    )


def _address(load: Load, settings: str) -> str:
    limits = (
        f"shared_least={load.shared}&shared_most={load.shared}&checks_per_gang=1"
        f"&exclusive_least={load.exclusive}&exclusive_most={load.exclusive}&compilers_most={load.compilers}"
    )
    return f"ray?pool=scale&evaluator=benchmarks.ray_sleeper:Sleeper&{limits}&compile_cpus=0.01{settings}"


def utilisation(answers: Sequence[Answer], gangs: int) -> float:
    """Time that exclusive gangs slept over the time that they existed, without either end of the run."""
    ordered = sorted(answers, key=lambda answer: answer.at_s)
    margin = int(MARGIN * len(ordered))
    inner = ordered[margin : len(ordered) - margin]
    span_s = inner[-1].at_s - inner[0].at_s
    slept_s = sum(answer.durations.exclusive_s for answer in inner[1:] if not answer.durations.fails_check)
    return slept_s / (gangs * span_s)


def summary(load: Load, parts: Sequence[Part]) -> dict[str, object]:
    """The result: the load, figures over all parts, and each part."""
    evaluations = sum(part.evaluations for part in parts)
    wall_s = sum(part.wall_s for part in parts)
    of_cluster = {name: sum(part.processor_s.get(name, 0.0) for part in parts) for name in parts[0].processor_s}
    of_cluster["driver"] = sum(part.driver_processor_s for part in parts)
    return {
        "load": asdict(load),
        "evaluations": evaluations,
        "per_s": evaluations / wall_s,
        "utilisation": sum(part.utilisation * part.wall_s for part in parts) / wall_s,
        "queue_s": sum(part.queue_s * part.evaluations for part in parts) / evaluations,
        "processor_ms_per_evaluation": {name: 1e3 * used_s / evaluations for name, used_s in of_cluster.items()},
        "finished": sum(part.finished for part in parts),
        "retries": sum(part.retries for part in parts),
        "infrastructure_faults": sum(part.infrastructure_faults for part in parts),
        "parts": [asdict(part) for part in parts],
    }


def _started(evaluator: RayEvaluator, load: Load, config: EvalConfig) -> float:
    """Starts all gangs, by an evaluation that takes all steps; seconds until they are ready."""
    began = time.monotonic()
    evaluator.evaluate(PROBLEM, source_of(0, 0.0, failing_share=0.0), config)
    gangs = load.shared + load.exclusive
    wait_until(lambda: sum(lane.gangs for lane in evaluator.status().lanes) == gangs, "gangs are missing", START_S)
    return time.monotonic() - began


def _thinned(samples: Sequence[float], most: int = 20) -> list[float]:
    """At most so many of them, evenly spread."""
    step = -(-len(samples) // most) or 1
    return [round(sample, 1) for sample in samples[::step]]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _read_arguments() -> argparse.Namespace:
    parser = make_parser("ray_scale", __doc__)
    parser.add_argument("--exclusive", type=int, default=72, help="gangs for timing (default: 72)")
    parser.add_argument("--shared", type=int, default=56, help="gangs for checks (default: 56)")
    parser.add_argument("--compilers", type=int, default=28, help="compile tasks at a time (default: 28)")
    parser.add_argument("--evaluations", type=int, default=20_000, help="in all runs together (default: 20,000)")
    parser.add_argument("--seeds", type=int, default=4, help="of each source (default: 4)")
    parser.add_argument("--waiting", type=int, default=512, help="evaluations submitted at a time (default: 512)")
    parser.add_argument("--scale", type=float, default=3.0, help="factor of the durations (default: 3)")
    parser.add_argument("--failing-share", type=float, default=0.3, help="of the evaluations (default: 0.3)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes that the gangs are on (default: 4)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no evaluation after so long")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    return parser.parse_args()


def main() -> None:
    """Measures until the number or the budget is reached, and saves."""
    args = _read_arguments()
    load = Load(
        shared=args.shared,
        exclusive=args.exclusive,
        world_size=8,
        compilers=args.compilers,
        evaluations=args.evaluations,
        seeds=args.seeds,
        waiting=args.waiting,
        scale=args.scale,
        failing_share=args.failing_share,
    )
    before = unfinished(args.out / "ray_scale.json")
    parts = [Part(**part) for part in before["parts"]] if before is not None and before["load"] == asdict(load) else []
    first = sum(part.evaluations for part in parts)
    if first < load.evaluations:
        per_node = -(-(load.shared + load.exclusive) // args.nodes)
        with local_cluster(head_cpus=1) as cluster:
            for _ in range(args.nodes):
                cluster.add_node(cpus=per_node + 16, gpus=8 * per_node)
            parts.append(measure(load, "&cpus_per_rank=0.1", first=first, budget_s=args.budget_s))
    save("ray_scale", summary(load, parts), args.out)


if __name__ == "__main__":
    main()
