"""Time of one evaluation, cold and warm, against starting processes anew each time.

python -m benchmarks.latency
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common import make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS
from pkb_gym.problems.catalogue import expert_source, find_problem

WORLD_SIZES = (2, 4)
"""World sizes of evaluations; gangs and fresh processes are of the largest."""
REPETITIONS = 10
IMPORTS = "import torch, torch.distributed"


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def evaluations(world_size: int) -> dict[str, float]:
    """AllReduce, tiny, all stages, in seconds: with a cold compile, and with the compile cached.

    An evaluator's first evaluations measure the overhead of blocks, too, and are reported apart.
    """
    problem = find_problem("AllReduce")
    source = expert_source(problem)
    assert source is not None
    config = EvalConfig(device="cpu", world_size=world_size, size="tiny")
    with tempfile.TemporaryDirectory() as folder, LocalEvaluator(cache_dir=Path(folder)) as evaluator:
        evaluator.warm_up(world_size)
        evaluator.evaluate(problem, source, config)

        def once(text: str) -> float:
            began = time.perf_counter()
            feedback = evaluator.evaluate(problem, text, config)
            assert feedback.passed, feedback.message
            return time.perf_counter() - began

        first = [once(source) for _ in range(MEASUREMENTS - 1)]
        cold = [once(f"{source}\n// {repetition}\n") for repetition in range(3)]
        warm = [once(source) for _ in range(REPETITIONS)]
    return {
        "first_cached_s": statistics.median(first),
        "cold_compile_s": statistics.median(cold),
        "cached_s": statistics.median(warm),
        "cached_worst_s": max(warm),
    }


def gang_starts() -> dict[str, float]:
    """Starting and ending a gang, by forking the sandboxed zygote."""
    zygote = Zygote(trusted=False)
    try:
        zygote.wait_until_ready()
        starts, ends = [], []
        for _ in range(REPETITIONS):
            began = time.perf_counter()
            gang = Gang(zygote, ".candidate", WORLD_SIZES[-1], Confinement(memory_bytes=1 << 30))
            starts.append(time.perf_counter() - began)
            ends.append(seconds(gang.close))
        return {"gang_start_s": statistics.median(starts), "gang_end_s": statistics.median(ends)}
    finally:
        zygote.close()


def fresh_processes() -> float:
    """Launching Python processes that import torch, and waiting until all have."""

    def launch() -> None:
        started = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(WORLD_SIZES[-1])]
        for process in started:
            process.wait()

    return statistics.median(seconds(launch) for _ in range(3))


def main() -> None:
    """Measures and saves."""
    make_parser("latency", __doc__).parse_args()
    of_ranks = {world_size: evaluations(world_size) for world_size in WORLD_SIZES}
    result = gang_starts() | {"fresh_processes_s": fresh_processes()}
    result["gang_start_advantage"] = result["fresh_processes_s"] / result["gang_start_s"]
    result["evaluation_advantage"] = result["fresh_processes_s"] / of_ranks[WORLD_SIZES[-1]]["cached_s"]
    evaluated = {f"evaluate_{world_size}_ranks": _rounded(figures) for world_size, figures in of_ranks.items()}
    save("latency", evaluated | _rounded(result))


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
