"""A run as a process of its own, interrupted and killed: whole lines stay, nothing else does, and the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pkb_gym.engine.records.attempt_file import read_attempts
from tests.waiting import PATIENCE_S

PROBLEMS = ("AllReduce", "AllGather", "Broadcast", "Scatter", "Gather", "Reduce", "AllToAll", "ReduceScatter")
WORDS = ["run", "--agent", "reference", "--device", "cpu", "--world-size", "2", "--until", "check", "--problems"]


@pytest.fixture
def start(tmp_path, shared_service):
    def run():
        url, token = shared_service
        command = [
            sys.executable,
            "-m",
            "pkb_gym.cli",
            *WORDS,
            *PROBLEMS,
            "--service",
            url,
            "--output",
            str(tmp_path),
        ]
        environment = os.environ | {
            "PKB_TOKEN": token,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # ignored where tests run in the background
        )

    return run


@pytest.mark.slow
def test_a_run_that_is_interrupted_and_then_killed_goes_on(start, tmp_path):
    results = tmp_path / "results.jsonl"
    before = []
    for sent, status in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        process = start()
        deadline = time.monotonic() + PATIENCE_S
        while (results.read_bytes().count(b"\n") if results.exists() else 0) < len(before) + 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(sent)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == status
        assert "Traceback" not in err
        attempts = read_attempts(results)
        assert attempts[: len(before)] == before and len(before) + 2 <= len(attempts) < len(PROBLEMS)
        assert {attempt.verdict for attempt in attempts} == {"passed"}
        before = attempts
    process = start()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out.startswith("reference: 8 of 8 problems passed") and f"{len(before)} episodes already complete" in err
    attempts = read_attempts(results)
    assert attempts[: len(before)] == before
    assert sorted(attempt.problem for attempt in attempts) == sorted(PROBLEMS)
