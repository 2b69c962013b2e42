"""Preemption of a process of the CPU."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pkb_gym.engine.reference.preemption import StoppedProcess
from pkb_gym.engine.support.pidfds import send, stat
from tests.waiting import until


@pytest.fixture
def pidfd() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        fd = os.pidfd_open(process.pid)
        yield fd
        os.close(fd)
        process.kill()


def test_a_process_stands_still_until_the_end(pidfd: int) -> None:
    preemption = StoppedProcess(pidfd)
    assert not preemption.has_begun()
    preemption.begin(0.001)
    until(preemption.has_begun)
    preemption.end()
    until(lambda: stat(pidfd)[0] != "T")


def test_one_that_has_ended_is_not_waited_for(pidfd: int) -> None:
    send(pidfd, signal.SIGKILL)
    preemption = StoppedProcess(pidfd)
    preemption.begin(0.001)
    until(preemption.has_begun)
    preemption.end()
