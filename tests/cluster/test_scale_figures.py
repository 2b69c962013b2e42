"""Figures of `benchmarks.ray_scale`, from answers and parts that are made up."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.ray_scale import Answer, Load, Part, summary, utilisation
from benchmarks.ray_sleeper import Durations

LOAD = Load(1, 2, 8, 1, evaluations=30, seeds=2, waiting=4, scale=1.0, failing_share=0.5)
PART = Part(
    first=0,
    evaluations=10,
    start_s=5.0,
    wall_s=10.0,
    utilisation=0.9,
    waited_p50_s=1.0,
    waited_p95_s=2.0,
    queue_s=0.5,
    driver_processor_s=0.02,
    processor_s={"pool": 0.1, "gangs": 0.3},
    processes={"pool": 1, "gangs": 3},
    pool_mib=[100.0],
    cluster_mib=[900.0],
    finished=10,
    retries=0,
    infrastructure_faults=0,
    exclusive_steps=5,
)


def answers(failing: int) -> list[Answer]:
    """One a second, each after half a second on an exclusive gang; the first ones of each ten fail their check."""
    return [
        Answer(float(second), 1.0, Durations(0.1, 0.2, 0.5, fails_check=second % 10 < failing)) for second in range(100)
    ]


def test_utilisation_is_time_on_exclusive_gangs_over_their_time():
    assert utilisation(answers(failing=0), gangs=1) == pytest.approx(0.5)
    assert utilisation(answers(failing=0), gangs=2) == pytest.approx(0.25)
    assert utilisation(answers(failing=5), gangs=1) == pytest.approx(0.25, rel=0.05)


def test_parts_are_summed_by_their_length():
    second = dataclasses.replace(
        PART, first=10, evaluations=20, wall_s=30.0, utilisation=0.98, queue_s=0.2, processor_s={"pool": 0.5}
    )
    found = summary(LOAD, [PART, second])
    assert found["evaluations"] == 30 and found["per_s"] == 30 / 40
    assert found["utilisation"] == pytest.approx(0.96) and found["queue_s"] == pytest.approx(0.3)
    costs = found["processor_ms_per_evaluation"]
    assert costs == pytest.approx({"pool": 20.0, "gangs": 10.0, "driver": 40 / 30})
