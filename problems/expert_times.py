"""Measured times of GPU experts: `expert_times.json`, which `python -m benchmarks.expert_times` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

EXPERT_TIMES = Path(__file__).parent / "expert_times.json"


@dataclass(frozen=True)
class ExpertTime:
    """One evaluation of an expert.

    Attributes:
        problem: Name of the problem.
        size: Name of the size.
        world_size: Number of ranks, one on each GPU.
        gpu: Name of the GPUs.
        dtype: Dtype of the inputs.
        expert_us: Time of a call of the expert, in microseconds.
        baseline_us: Time of a call of the eager baseline, in microseconds.
        captured_us: Time of a call of the baseline as a CUDA graph, in microseconds; None where it was not captured.
        speedup: Speedup over the eager baseline.
        speedup_low: Lower end of its 95 % interval.
        utilisation: Share of the roofline, in [0, 1]; None where it is unknown.
        commit: Commit of the expert that was measured.
        date: Day of the measurement, such as "2026-11-28".
    """

    problem: str
    size: str
    world_size: int
    gpu: str
    dtype: str
    expert_us: float
    baseline_us: float
    captured_us: float | None
    speedup: float
    speedup_low: float
    utilisation: float | None
    commit: str
    date: str


def expert_times(problem: str) -> tuple[ExpertTime, ...]:
    """All times of a problem's expert, by number of ranks and size; none where nothing was measured.

    Args:
        problem: Name of the problem.
    """
    return _all_times().get(problem, ())


@cache
def _all_times() -> dict[str, tuple[ExpertTime, ...]]:
    found: dict[str, tuple[ExpertTime, ...]] = {}
    for row in json.loads(EXPERT_TIMES.read_text(encoding="utf-8"))["rows"]:
        time = ExpertTime(**row)
        found[time.problem] = (*found.get(time.problem, ()), time)
    return found
