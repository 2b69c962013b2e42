"""The control plane at scale: real Ray, and gangs that sleep as long as measured evaluations took.

    python -m benchmarks.ray_scale

128 gangs of 8 GPUs that exist in name alone, 20,000 evaluations, four seeds of each source. Durations are drawn from
results/command_times.json. Utilisation is the time that exclusive gangs slept over the time that they existed, from a
tenth to nine tenths of the answers. On an idle machine with 24 GiB of memory.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import psutil

from benchmarks.common import make_parser, save
from benchmarks.ray_cluster import local_cluster, ray_processes
from benchmarks.ray_sleeper import Durations, durations_of, source_of
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
SAMPLE_S = 5.0
MARGIN = 0.1
"""Share of the answers at either end that utilisation leaves out."""


@dataclass(frozen=True)
class Load:
    """What a pool is given.

    Attributes:
        shared, exclusive: gangs.
        world_size: GPUs of each.
        compilers: at the same time.
        evaluations: in all.
        seeds: of each source, which is compiled once.
        waiting: that are asked for at the same time.
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
    """When an evaluation was answered, by `time.monotonic`, and after how long."""

    at_s: float
    waited_s: float
    durations: Durations


class MemoryOfPool:
    """Samples the resident memory of the pool's process while the block runs.

    Attributes:
        samples_mib: in the order of time.
    """

    def __init__(self) -> None:
        self.samples_mib: list[float] = []
        self.processor_s = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemoryOfPool:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            for process in ray_processes("ray::Pool"):
                try:
                    self.samples_mib.append(process.memory_info().rss / 2**20)
                    used = process.cpu_times()
                    self.processor_s = used.user + used.system
                except psutil.Error:
                    continue
            if self._ending.wait(SAMPLE_S):
                return


def measure(load: Load, settings: str = "", device: Device = "cuda") -> dict[str, object]:
    """Runs a load on the cluster that this process is connected to.

    Args:
        load: of the pool.
        settings: further ones of the pool.
        device: that gangs reserve.
    """
    limits = (
        f"shared_least={load.shared}&shared_most={load.shared}&checks_per_gang=1"
        f"&exclusive_least={load.exclusive}&exclusive_most={load.exclusive}&compilers_most={load.compilers}"
    )
    address = f"ray?pool=scale&judge=benchmarks.ray_sleeper:Sleeper&{limits}&compile_cpus=0.01{settings}"
    config = EvalConfig(device=device, world_size=load.world_size, size="tiny", until="profile")
    driver_before = _processor_s()
    with RayEvaluator(address, timeout_s=24 * 3600.0) as evaluator, ThreadPoolExecutor(load.waiting) as threads:

        def evaluate(number: int) -> Answer:
            drawn = (number // load.seeds, load.scale, load.failing_share)
            durations = durations_of(*drawn)
            asked = config.model_copy(update={"seed": number % load.seeds})
            began = time.monotonic()
            evaluator.evaluate(PROBLEM, source_of(*drawn), asked)
            now = time.monotonic()
            return Answer(now, now - began, durations)

        began = time.monotonic()
        with MemoryOfPool() as memory:
            answers = list(threads.map(evaluate, range(load.evaluations)))
        wall_s = time.monotonic() - began
        status = evaluator.status()
    return {
        "load": asdict(load),
        "wall_s": wall_s,
        "utilisation": utilisation(answers, load.exclusive),
        "per_s": load.evaluations / wall_s,
        "queue_s_per_evaluation": status.queue_s / load.evaluations,
        "driver_processor_ms_per_evaluation": 1e3 * (_processor_s() - driver_before) / load.evaluations,
        "pool_processor_ms_per_evaluation": 1e3 * memory.processor_s / load.evaluations,
        "pool_memory_mib": memory.samples_mib[:: max(1, len(memory.samples_mib) // 20)],
        "finished": status.finished,
        "retries": status.retries,
        "infrastructure_faults": status.infrastructure_faults,
        "exclusive_steps": status.exclusive_steps,
    }


def utilisation(answers: list[Answer], gangs: int) -> float:
    """Time that exclusive gangs slept over the time that they existed, without either end of the run."""
    ordered = sorted(answers, key=lambda answer: answer.at_s)
    margin = int(MARGIN * len(ordered))
    inner = ordered[margin : len(ordered) - margin]
    span_s = inner[-1].at_s - inner[0].at_s
    slept_s = sum(answer.durations.exclusive_s for answer in inner[1:] if not answer.durations.fails_check)
    return slept_s / (gangs * span_s)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _read_arguments() -> argparse.Namespace:
    parser = make_parser("ray_scale", __doc__)
    parser.add_argument("--exclusive", type=int, default=72, help="gangs for timing (default: 72)")
    parser.add_argument("--shared", type=int, default=56, help="gangs for checks (default: 56)")
    parser.add_argument("--compilers", type=int, default=40, help="compile tasks at a time (default: 40)")
    parser.add_argument("--evaluations", type=int, default=20_000, help="default: 20,000")
    parser.add_argument("--seeds", type=int, default=4, help="of each source (default: 4)")
    parser.add_argument("--waiting", type=int, default=512, help="evaluations asked for at a time (default: 512)")
    parser.add_argument("--scale", type=float, default=3.0, help="factor of the durations (default: 3)")
    parser.add_argument("--failing-share", type=float, default=0.3, help="of the evaluations (default: 0.3)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes that the gangs are on (default: 4)")
    return parser.parse_args()


def main() -> None:
    """Measures and saves."""
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
    per_node = -(-(load.shared + load.exclusive) // args.nodes)
    with local_cluster(head_cpus=1) as cluster:
        for _ in range(args.nodes):
            cluster.add_node(cpus=per_node + 16, gpus=8 * per_node)
        result = measure(load, "&cpus_per_rank=0.1")
    save("ray_scale", result)


if __name__ == "__main__":
    main()
