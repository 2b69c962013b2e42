"""The benchmark of a Ray pool as a program, with a small load: its figures hold together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import header

LIMIT_S = 280.0


@pytest.mark.skipif(not os.environ.get("PKB_TEST_CLUSTER"), reason="takes minutes on a Ray cluster: `make cluster`")
def test_a_small_load(tmp_path: Path):
    pytest.importorskip("ray")
    command = ["-m", "benchmarks.ray_load", "--evaluations", "3", "--side-by-side", "2", "--gangs", "1", "2"]
    ran = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "ray_load.json").read_text())
    assert found["commit"] == header()["commit"]
    one = found["overhead"]
    assert one["evaluations"] == 3 and one["local_p50_ms"] > 0 and one["ray_p50_ms"] > 0
    assert one["throughput_share"] == pytest.approx(one["ray_per_minute"] / one["local_per_minute"])
    assert [row["gangs"] for row in found["rows"]] == [1, 2] and all(row["per_minute"] > 0 for row in found["rows"])
