"""The benchmarks on Ray, each as a program with a small load: its result holds together, and a further run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import header
from benchmarks.ray_sleeper import durations_of
from tests.cluster.on_cluster import by_make_cluster

pytestmark = by_make_cluster

LIMIT_S = 280.0


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a benchmark; its result."""

    def run(name: str, *options: object) -> dict[str, Any]:
        command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, options), "--out", str(tmp_path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert ran.returncode == 0, ran.stderr
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["commit"] == header()["commit"]
        return found

    return run


def test_overhead(measured):
    found = measured("ray_overhead", "--evaluations", 3, "--side-by-side", 2)
    assert found["evaluations"] == 3 and found["local_p50_ms"] > 0 and found["ray_p50_ms"] > 0
    assert found["throughput_share"] == pytest.approx(found["ray_per_minute"] / found["local_per_minute"])


def test_gangs(measured):
    first = measured("ray_gangs", "--gangs", 1, "--evaluations", 2)
    assert [row["gangs"] for row in first["rows"]] == [1]
    both = measured("ray_gangs", "--gangs", 1, 2, "--evaluations", 2)
    assert [row["gangs"] for row in both["rows"]] == [1, 2] and both["rows"][0] == first["rows"][0], "measured once"
    assert all(row["per_minute"] == pytest.approx(120 / row["wall_s"]) for row in both["rows"])


def test_the_control_plane(measured):
    load = ("--shared", 1, "--exclusive", 2, "--compilers", 2, "--seeds", 2, "--waiting", 8, "--nodes", 1)
    load += ("--scale", 0.05, "--evaluations", 30)
    begun = measured("ray_scale", *load, "--budget-s", 0.2)
    assert 8 <= begun["evaluations"] < 30
    found = measured("ray_scale", *load)
    failing = 2 * sum(durations_of(number, 0.05, 0.3).fails_check for number in range(15))
    assert found["evaluations"] == found["finished"] == 30 and found["parts"][0] == begun["parts"][0]
    assert sum(part["exclusive_steps"] for part in found["parts"]) == 30 - failing
    assert 0 < found["utilisation"] <= 1 and found["retries"] == found["infrastructure_faults"] == 0
    assert found["parts"][1]["pool_mib"] and found["parts"][1]["cluster_mib"]
    assert {"pool", "gangs", "compilers", "raylets", "gcs", "driver"} <= set(found["processor_ms_per_evaluation"])


def test_exactly_one_right_result_whatever_dies(measured):
    """A first client is killed, then a gang, then a node with a gang on it; the second client has every verdict."""
    found = measured("ray_faults", "--evaluations", 24, "--round", 24, "--faults", "gang", "node")
    assert found["wrong"] == [] and found["verdicts"]["passed"] == 4
    assert (found["submitted"], found["finished"], found["joined"]) == (24, 24, 24), "nothing lost, nothing twice"
    assert (found["clients_killed"], found["gangs_killed"], found["nodes_killed"]) == (1, 1, 1)
    assert found["infrastructure_faults"] == 0 and found["retries"] >= 1
    assert found["left_over"] == []
