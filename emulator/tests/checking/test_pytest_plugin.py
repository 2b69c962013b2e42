"""The fixture `ranks` in a test of a collective."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
__global__ void put(float* to, const float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = x[i];
}
void shift(const float* x, float* const* out, int rank, int size, cudaStream_t stream) {
  put<<<1, 32, 0, stream>>>(out[(rank + 1) % size], x, 64);
}
"""
TEST = """
ARGUMENTS = dict(args="x:f32[64],out:f32[64]", call="shift(x, out_ranks, rank, world_size, stream)")

def test_shift(ranks):
    ranks("shift.cu", **ARGUMENTS, world_size=2, reference=lambda x: {"out": [x[1], x[0]]})

def test_report(ranks):
    report = ranks("shift.cu", **ARGUMENTS, world_size=2, may_fail=True)
    assert report.runs == 2 and not report.passed
"""


def test_a_race_fails_the_test_with_the_report(emulator_path: Path | None, tmp_path: Path) -> None:
    """A rank stores to its neighbour's output before that one has begun."""
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    (tmp_path / "shift.cu").write_text(KERNEL)
    (tmp_path / "test_shift.py").write_text(TEST)
    words = ["-p", "rank_emulator.pytest_plugin", "--ranks-schedules", "2", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, "--ranks-emulator", str(emulator_path), "test_shift.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "unsynchronised: race on 4 bytes of rank" in done.stdout and "in 2 runs; again by --ranks 2" in done.stdout
