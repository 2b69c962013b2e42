"""A rank that is stopped now and then."""

import os
import subprocess
import sys
import time

import pytest

from pkb_gym.engine.ranks import stop_pulses
from pkb_gym.engine.ranks.pidfds import stat
from pkb_gym.engine.ranks.stop_pulses import StopPulses


@pytest.fixture
def spinning():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    pidfd = os.pidfd_open(process.pid)
    yield pidfd
    os.close(pidfd)
    process.kill()
    process.wait()


def test_it_is_stopped_meanwhile_and_runs_afterwards(spinning, monkeypatch):
    monkeypatch.setattr(stop_pulses, "STOP_S", (60.0, 60.0))  # the end of the block ends it
    states = set()
    deadline = time.monotonic() + 60
    with StopPulses(spinning):
        while "T" not in states and time.monotonic() < deadline:
            states.add(stat(spinning)[0])
    assert "T" in states
    assert stat(spinning)[0] != "T"


def test_a_rank_that_has_ended_meanwhile_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(process.pid)
    with StopPulses(pidfd):
        process.wait()
    os.close(pidfd)
