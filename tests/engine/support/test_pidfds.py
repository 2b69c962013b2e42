"""Processes that are held by a pidfd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pkb_gym.engine.support.pidfds import run_delay_ns

counts_delays = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs a kernel with schedstat")


@contextmanager
def spinning(processor: int) -> Iterator[int]:
    """A pidfd of a process that computes on one processor."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {processor})
        while True:
            pass
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pidfd)


@counts_delays
def test_processes_that_share_a_processor_wait_for_it():
    """Each has about half of it; on a busy machine less."""
    processor = min(os.sched_getaffinity(0))
    with spinning(processor) as one, spinning(processor) as other:
        deadline = time.monotonic() + 30
        while min(run_delay_ns(one), run_delay_ns(other)) < 50_000_000:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_process_that_has_ended_waits_for_nothing():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    pidfd = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    assert run_delay_ns(pidfd) == 0
    os.close(pidfd)
