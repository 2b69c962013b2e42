"""Ranks that wait for each other for good, told from ranks that are slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from pkb_gym.engine.gangs import deadlock_watch
from pkb_gym.engine.gangs.deadlock_watch import DeadlockWatch
from pkb_gym.engine.gangs.heaps import UnmetWait

SLEEPS = "print('there', flush=True); input()"
SPINS_IN_A_THREAD = """
import threading
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
print('there', flush=True)
input()
"""
SETTLED_S, WATCHED_S = 0.2, 1.0


class Heap:
    """Holds the waits that ranks report."""

    def __init__(self, *waits: UnmetWait | None) -> None:
        self.waits = list(waits)

    def unmet_wait(self, rank: int) -> UnmetWait | None:
        return self.waits[rank]


Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program; gives a descriptor of its process."""
    processes: list[subprocess.Popen[bytes]] = []
    descriptors: list[int] = []

    def begin(program: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        descriptors.append(os.pidfd_open(process.pid))
        return descriptors[-1]

    yield begin
    for process, descriptor in zip(processes, descriptors, strict=True):
        os.close(descriptor)
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock_watch, "SETTLED_S", SETTLED_S)
    monkeypatch.setattr(deadlock_watch, "WATCH_S", 0.02)


def seen_after_s(watch: DeadlockWatch, ranks: set[int], meanwhile: Callable[[], None] = lambda: None) -> float | None:
    """Seconds until a deadlock is seen; None if it is not within `WATCHED_S`."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < WATCHED_S:
        if watch.sees_deadlock(ranks):
            return passed
        meanwhile()
        time.sleep(0.01)
    return None


def test_ranks_that_sleep_in_waits_for_good_are_seen_once_that_is_sure(start: Start) -> None:
    watch = DeadlockWatch([start(SLEEPS), start(SLEEPS)], Heap(UnmetWait(0, 1, 2), UnmetWait(0, 3, 1)))
    seen = seen_after_s(watch, {0, 1})
    assert seen is not None and seen >= SETTLED_S


def test_a_rank_that_is_done_is_none_of_them(start: Start) -> None:
    watch = DeadlockWatch([start(SLEEPS), start(SLEEPS)], Heap(UnmetWait(0, 1, 2), None))
    assert seen_after_s(watch, {0}) is not None


def test_a_rank_that_does_not_wait_may_signal(start: Start) -> None:
    """It may be late, held or asleep."""
    watch = DeadlockWatch([start(SLEEPS), start(SLEEPS)], Heap(UnmetWait(0, 1, 2), None))
    assert seen_after_s(watch, {0, 1}) is None


def test_a_thread_at_work_may_signal(start: Start) -> None:
    """A kernel's own thread computes, while the one that was called waits for it."""
    watch = DeadlockWatch([start(SLEEPS), start(SPINS_IN_A_THREAD)], Heap(UnmetWait(0, 1, 2), UnmetWait(0, 3, 1)))
    assert seen_after_s(watch, {0, 1}) is None


def test_a_stopped_rank_may_signal_when_it_goes_on(start: Start) -> None:
    stopped = start(SLEEPS)
    signal.pidfd_send_signal(stopped, signal.SIGSTOP)
    watch = DeadlockWatch([start(SLEEPS), stopped], Heap(UnmetWait(0, 1, 2), UnmetWait(0, 3, 1)))
    assert seen_after_s(watch, {0, 1}) is None


def test_ranks_that_come_to_other_waits_go_on(start: Start) -> None:
    heap = Heap(UnmetWait(0, 1, 2), UnmetWait(0, 3, 1))
    watch = DeadlockWatch([start(SLEEPS), start(SLEEPS)], heap)
    calls = iter(range(1, 10_000))

    def next_call() -> None:
        heap.waits[1] = UnmetWait(next(calls), 3, 1)

    assert seen_after_s(watch, {0, 1}, next_call) is None
