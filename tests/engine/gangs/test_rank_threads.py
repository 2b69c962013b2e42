"""Waiting for the threads of ranks to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pkb_gym.engine.gangs import rank_threads
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.rank_threads import LOOKS_AT_ONCE, STOPPED, thread_states, wait_until_stopped

THREADS = "import threading; [threading.Thread(target=input).start() for _ in range(3)]; print('there', flush=True)"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Has four threads."""
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        yield process
        process.kill()


@pytest.fixture
def pidfd(process: subprocess.Popen[bytes]) -> Iterator[int]:
    descriptor = os.pidfd_open(process.pid)
    yield descriptor
    os.close(descriptor)


def test_every_thread_has_a_state_until_the_process_has_ended(process: subprocess.Popen[bytes], pidfd: int) -> None:
    assert len(thread_states(pidfd)) == 4
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    wait_until_stopped([pidfd], time.monotonic() + 60)
    assert len(thread_states(pidfd)) == 4 and set(thread_states(pidfd)) <= STOPPED
    process.kill()
    process.wait()
    assert thread_states(pidfd) == ""
    wait_until_stopped([pidfd], time.monotonic() + 60)


def test_who_waits_leaves_the_processor_to_threads_that_need_it(pidfd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks without a pause took half of the processor time of evaluations side by side."""
    pauses: list[float] = []
    states = iter(["SR"] * (LOOKS_AT_ONCE + 20) + ["T"])
    monkeypatch.setattr(rank_threads, "thread_states", lambda _: next(states))
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert wait_until_stopped([pidfd], time.monotonic() + 60) >= 0
    assert len(pauses) == 21 and min(pauses) > 0


def test_a_process_that_somebody_continued_is_stopped_again(pidfd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel was refused, since its rank had lost SIGSTOP to a SIGCONT of somebody else."""
    monkeypatch.setattr(rank_threads, "STOP_AGAIN_S", 0.01)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    wait_until_stopped([pidfd], time.monotonic() + 60)
    assert set(thread_states(pidfd)) <= STOPPED


def test_a_thread_that_does_not_stop_is_named(pidfd: int) -> None:
    with pytest.raises(GangFailed, match=r"rank 0 could not be stopped: it has a thread that (sleeps|runs)"):
        wait_until_stopped([pidfd], time.monotonic() - 1)
