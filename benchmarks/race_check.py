"""Processor time of the race detector beside GPUs, for every CUDA expert on 2 ranks; needs no GPU.

python -m benchmarks.race_check [PROBLEM ...]

A source is compiled for GPUs alone, and in one go for emulated ones too; then it is judged, and judged again from the
cache. Times are those of all processes, of user and system, from a control group, which needs root.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import read_problems, save
from benchmarks.emulated_experts import processor_seconds
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator, compile_for_both
from pkb_gym.engine.compile.nvcc import compile_cuda
from pkb_gym.engine.evaluators.race_detector import RaceDetector
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.config import EvalConfig, resolve
from pkb_gym.engine.records.source import Source
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

TIMEOUT_S = 1200.0
KEY = b"benchmark"
CONFIG = EvalConfig(world_size=2, compile_timeout_s=TIMEOUT_S)
EVALUATIONS_A_MINUTE = 41
"""Evaluations of new texts that two H200 finish in a minute (README.md)."""


def judge(name: str, cache: CompileCache, detector: RaceDetector, now: Callable[[], float]) -> dict[str, Any]:
    """The row of a problem: seconds of processor time, and the wall time of the verdict.

    Args:
        name: Name of a problem that has a CUDA expert.
        cache: Cache of compiled results.
        detector: Detector with the same cache.
        now: Clock of processor time.
    """
    problem = find_problem(name)
    text = expert_source(problem, "cu")
    assert text is not None, f"{name} has no CUDA expert"
    config = resolve(
        CONFIG,
        problem,
        device="cuda",
        language="cuda",
        memory_total_bytes=host.memory_total_bytes(),
        gpus=CONFIG.world_size or 1,
        no_detector="",
    )
    began_s = now()
    compile_cuda(text, cache, TIMEOUT_S)
    alone_s = now()
    compiled = compile_for_both(text, cache, TIMEOUT_S)
    both_s = now()
    found = detector.begin(problem, Source.parse(text, "cuda"), compiled, config, KEY).result()
    judged_s = now()
    assert found.report.verdict == "no_race", f"{name}: {found.report.reason}{found.message}"
    detector.begin(problem, Source.parse(text, "cuda"), compiled, config, KEY).result()
    return {
        "problem": name,
        "compile_alone_s": round(alone_s - began_s, 2),
        "compile_for_both_s": round(both_s - alone_s, 2),
        "verdict_s": round(judged_s - both_s, 2),
        "cached_verdict_s": round(now() - judged_s, 3),
        "verdict_wall_s": round(found.report.duration_s, 2),
    }


def main() -> None:
    """Measures and saves."""
    names = read_problems("race_check", __doc__)
    names = names or [problem.name for problem in catalogue() if expert_source(problem, "cu")]
    now = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        cache = CompileCache.in_folder(Path(folder))
        build_emulator(cache)
        detector = RaceDetector(cache)
        try:
            first = judge(names[0], cache, detector, now)  # it starts the processes that runs share
            rows = [judge(name, cache, detector, now) for name in names[1:]]
        finally:
            detector.close()
    print(*rows, sep="\n", file=sys.stderr)
    added_s = [row["compile_for_both_s"] - row["compile_alone_s"] + row["verdict_s"] for row in rows]
    summary = {
        "added_s": round(statistics.mean(added_s), 2),
        "median_added_s": round(statistics.median(added_s), 2),
        "evaluations_a_minute": EVALUATIONS_A_MINUTE,
        "processors_kept_busy": round(statistics.mean(added_s) * EVALUATIONS_A_MINUTE / 60, 2),
    }
    save("race_check", {**summary, "with_start_of_processes": first, "rows": rows})


if __name__ == "__main__":
    main()
