"""A rank that is stopped now and then."""

import os
import subprocess
import sys
import threading
import time

import pytest

from pkb_gym.engine.gangs import stop_pulses
from pkb_gym.engine.gangs.stop_pulses import StopPulses
from pkb_gym.engine.support.pidfds import stat

SLACK_S = 5.0
"""On a busy machine."""


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
    with StopPulses(spinning, 0.01):
        while "T" not in states and time.monotonic() < deadline:
            states.add(stat(spinning)[0])
    assert "T" in states
    assert stat(spinning)[0] != "T"


def test_a_rank_that_has_ended_meanwhile_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(process.pid)
    with StopPulses(pidfd, 0.01):
        process.wait()
    os.close(pidfd)


@pytest.mark.parametrize(("block_s", "least_s"), [(0.0, 0.0), (0.4, 0.3)])
def test_the_first_stop_may_come_late_in_the_block_and_not_behind_it(monkeypatch, block_s, least_s):
    """A rank that has not been stopped for a while would else know that it is not going to be."""
    monkeypatch.setattr(stop_pulses.random, "uniform", lambda least, most: most)
    began, stopped = time.monotonic(), threading.Event()
    monkeypatch.setattr(stop_pulses, "send", lambda pidfd, number: stopped.set())
    with StopPulses(-1, block_s):
        assert stopped.wait(60)
        after_s = time.monotonic() - began
    assert after_s >= least_s
    assert after_s < block_s + SLACK_S
